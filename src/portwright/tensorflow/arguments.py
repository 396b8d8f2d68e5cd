"""Arguments: which ones a user's function takes, and the errors for a wrong one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from portwright.errors import UserError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that can be given by keyword, without those that a functools.partial has bound."""
    if isinstance(function, functools.partial):
        free = argument_names(function.func)[len(function.args) :]
        return tuple(name for name in free if name not in function.keywords)
    signature = inspect.signature(function, follow_wrapped=False)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and all(parameter.kind in _ANY for parameter in signature.parameters.values()):
        return argument_names(wrapped)  # a decorator that passes all its arguments on
    return tuple(name for name, parameter in signature.parameters.items() if parameter.kind in _NAMED)


def call_with(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Calls `function` with those of the offered arguments that it takes."""
    names = argument_names(function)
    return function(**{name: value for name, value in offered.items() if name in names})


class BadValue(UserError, ValueError):
    """A value that tf.estimator refused with a ValueError."""


class BadType(UserError, TypeError):
    """A value that tf.estimator refused with a TypeError."""
