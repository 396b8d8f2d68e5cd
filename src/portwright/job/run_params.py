"""The params of a run as its command line asks for them, PARAMS_SCHEMA of the user's code, and the folder that it runs in."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portwright.discover import find_all_models, find_targets
from portwright.errors import UserError
from portwright.job.arguments import Arguments, script_folder
from portwright.job.params import Params, load_params


def load_run_params(
    arguments: Arguments, default_params_fn: Callable[[dict[str, Any]], Any] | None
) -> Params:
    """Reads the params file of a command line; the values of the user's own flags are added to runconfig."""
    params = load_params(
        arguments.params,
        overrides=arguments.overrides,
        default_params_fn=default_params_fn,
        user_schemas=_user_schemas(default_params_fn),
        target_sections=arguments.target.sections,
        known_target_sections=[name for target in find_targets().values() for name in target.sections],
        config=arguments.config,
    )
    params.values["runconfig"].update(arguments.extra)
    return params


def find_model_dir(arguments: Arguments, params: Params) -> Path:
    chosen = arguments.model_dir if arguments.model_dir is not None else params.runconfig.model_dir
    if chosen is None:
        return default_model_dir(script_folder())
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:  # ~user of an unknown user
        raise UserError(
            f"cannot use model_dir '{chosen}': {error}", "Choose another folder with --model_dir."
        ) from error


def default_model_dir(folder: Path) -> Path:
    """model_dir beside the script; NAME_run where one stands for a reference model, whose script is in the package."""
    for name, path in find_all_models().items():
        if path.resolve() == folder.resolve():
            return Path.cwd() / f"{name.replace('/', '_')}_run"
    return folder / "model_dir"


def _user_schemas(default_params_fn: Any) -> Mapping[str, Any]:
    """PARAMS_SCHEMA of the module that set_defaults is in, or of the user's utils.py."""
    for name in (getattr(default_params_fn, "__module__", None), "utils"):
        module = sys.modules.get(name) if name else None
        schema = schema_of_namespace(vars(module), module.__name__) if module is not None else None
        if schema is not None:
            return schema
    return {}


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
