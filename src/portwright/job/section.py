"""The base of every section of params.yaml: strict about keys, and about what YAML already typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

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


def contradiction(message: str, *keys: str) -> PydanticCustomError:
    """An error for a model validator to raise when `keys` of one section do not go together.

    Whoever reads the file then names the line of each of them.
    """
    return PydanticCustomError("contradiction", message, {"keys": keys})


class Section(pydantic.BaseModel):
    """A part of params.yaml in which an unknown key is an error.

    YAML has types, so nothing is guessed from them: `true` is not 1 and "5" is not 5. A whole number may stand
    for a float, and 1e5 for a whole number. NaN and infinity need `Field(allow_inf_nan=True)`.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # a run needs a few of some thirty sections, and --help none
    )

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of keys, each with the field that it stands for."""

    rare: ClassVar[Collection[str]] = ()
    """Keys that a list of valid keys leaves out, unless one of them is the nearest."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _respell(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not cls.aliases:
            return data
        spelt: dict[Any, Any] = {}
        values: dict[Any, Any] = {}
        for key, value in data.items():
            name = cls.aliases.get(key, key)
            if name in values and not same_value(values[name], value):
                raise contradiction(
                    f"'{spelt[name]}' and '{key}' are two spellings of one key, with the values "
                    f"{values[name]!r} and {value!r}",
                    spelt[name],
                    key,
                )
            values[name], spelt[name] = value, key
        return values

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        strict: CoreSchema = with_strict_scalars(handler(source))
        return strict

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler.resolve_ref_schema(handler(schema))
        properties = described.get("properties", {})
        for alias, name in cls.aliases.items():
            properties[alias] = {**properties[name], "description": f"Another spelling of {name}."}
        spellings = {name: [name] for name in described.get("required", [])}
        for alias, name in cls.aliases.items():
            if name in spellings:
                spellings[name].append(alias)
        described["required"] = [name for name, names in spellings.items() if len(names) == 1]
        either = [names for names in spellings.values() if len(names) > 1]
        if either:
            described["allOf"] = [{"anyOf": [{"required": [name]} for name in names]} for names in either]
        if not described["required"]:
            del described["required"]
        return described


def same_value(one: object, other: object) -> bool:
    """Whether two values of a YAML file mean the same; `true` and 1 do not."""
    is_nan = one != one and other != other
    return is_nan or (one == other and isinstance(one, bool) == isinstance(other, bool))
