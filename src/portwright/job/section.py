"""The base of every section of params.yaml: strict about keys, and about what YAML already typed."""

from __future__ import annotations

from typing import Any

import pydantic
from pydantic_core import CoreSchema, core_schema

# Values of a schema that are not schemas themselves.
_OPAQUE = frozenset({"default", "metadata", "expected", "config", "cls", "function", "serialization"})


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def with_strict_scalars(schema: Any) -> Any:
    """Copies a pydantic schema so that numbers and booleans in it accept only their own kind.

    pydantic's own strict mode would also refuse a YAML list for a tuple and a string for a path.
    """
    if isinstance(schema, list):
        return [with_strict_scalars(item) for item in schema]
    if isinstance(schema, tuple):
        return tuple(with_strict_scalars(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "fields" and isinstance(value, dict):  # its keys are the fields' names
            copy[key] = {name: with_strict_scalars(field) for name, field in value.items()}
        else:
            copy[key] = value if key in _OPAQUE else with_strict_scalars(value)
    if copy.get("type") in ("int", "float", "bool"):
        copy.setdefault("strict", True)
    if copy.get("type") == "int" and copy["strict"]:
        return core_schema.no_info_before_validator_function(_whole, copy)
    return copy


class Section(pydantic.BaseModel):
    """A part of params.yaml in which an unknown key is an error.

    YAML has types, so nothing is guessed from them: `true` is not 1 and "5" is not 5. A whole number may stand
    for a float, and 1e5 for a whole number. NaN and infinity need `Field(allow_inf_nan=True)`.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        strict: CoreSchema = with_strict_scalars(handler(source))
        return strict
