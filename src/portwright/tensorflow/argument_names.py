"""Which arguments a user's function takes, so that it is given those and no others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names that can be given by keyword; what a functools.partial has bound already is left out."""
    if isinstance(function, functools.partial):
        free = argument_names(function.func)[len(function.args) :]
        return tuple(name for name in free if name not in function.keywords)
    signature = inspect.signature(function, follow_wrapped=False)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and all(parameter.kind in _ANY for parameter in signature.parameters.values()):
        return argument_names(wrapped)  # a decorator that passes on whatever it gets
    return tuple(name for name, parameter in signature.parameters.items() if parameter.kind in _NAMED)


def call_with(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Calls `function` with those of the offered arguments that it takes."""
    names = argument_names(function)
    return function(**{name: value for name, value in offered.items() if name in names})
