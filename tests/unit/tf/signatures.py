"""Signatures as data, so that those of two environments can be compared. Imports nothing of ours."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import Any


def public_names(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a module and the modules in it."""
    for name in sorted(vars(module) if not hasattr(module, "__all__") else dir(module)):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from public_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe(value: Any) -> dict[str, Any]:
    """The arguments of a function, or of a class and its public methods; None where they cannot be known."""
    if not inspect.isclass(value):
        return {"arguments": arguments(value)}
    methods = {}
    for name in dir(value):
        method = inspect.getattr_static(value, name)
        if not name.startswith("_") and _is_own(value, name):
            function = method.__func__ if isinstance(method, (classmethod, staticmethod)) else method
            methods[name] = arguments(function) if inspect.isfunction(function) else None
    return {"arguments": arguments(value), "methods": methods}


def arguments(function: Any) -> list[str] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    found = [_write(parameter) for parameter in parameters if parameter.name not in ("self", "cls")]
    return None if found == ["*args", "**kwargs"] else found


def _is_own(kind: type, name: str) -> bool:
    return not any(name in vars(base) for base in (tuple, Exception, object))


def _write(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(
        parameter.kind, ""
    )
    if parameter.default is inspect.Parameter.empty:
        return stars + parameter.name
    return f"{parameter.name}={_write_default(parameter.default)}"


def _write_default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if inspect.isfunction(value):
        return value.__name__.lstrip("_")
    if type(value) is object:
        return "<not given>"
    return getattr(value, "name", None) or repr(value)
