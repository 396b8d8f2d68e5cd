"""PARAMS_SCHEMA: the classes by which a user has the sections of his own model checked."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portwright.errors import UserError


def schema_of_namespace(namespace: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
    """PARAMS_SCHEMA of a module, section name to pydantic class, if it has one."""
    from pydantic import BaseModel

    schema = namespace.get("PARAMS_SCHEMA")
    if schema is None:
        return None
    if not isinstance(schema, Mapping):
        raise UserError(
            f"PARAMS_SCHEMA in {place} is {type(schema).__name__}.",
            "Make it a dict of section name to pydantic class.",
        )
    for section, kind in schema.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            raise UserError(
                f"PARAMS_SCHEMA in {place} has {kind!r} for '{section}'.",
                "Give a class derived from pydantic.BaseModel.",
            )
    return schema


def schema_of_folder(folder: Path) -> Mapping[str, Any]:
    """PARAMS_SCHEMA of a model folder's utils.py, which is executed for it."""
    path = folder / "utils.py"
    if not path.is_file():
        raise UserError(f"'{folder}' has no utils.py.", "Give a model folder, or leave it out.")
    sys.path.insert(0, str(folder))
    try:
        namespace = runpy.run_path(str(path))
    except Exception as error:
        raise UserError(
            f"{path} cannot be imported: {type(error).__name__}: {error}.", "Correct it first."
        ) from error
    finally:
        sys.path.remove(str(folder))
    return schema_of_namespace(namespace, str(path)) or {}
