"""Marks of what the emulator does with a name of PopTorch: the table in docs/emulated-poptorch.md is made from them.

What carries no mark is emulated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from portwright.emulate.poptorch.poptorch_core import Error

Marked = TypeVar("Marked", bound=Callable[..., Any])
_MARK = "__portwright_mark__"


class Mark(NamedTuple):
    """`status` is emulated, partly (see `why`), accepted (no effect here) or refused."""

    status: str
    why: str


def refused(why: str) -> Callable[[Marked], Marked]:
    """Keeps a function's signature, and has it raise `Error` with `why` when it is called."""

    why = _sentence(why)

    def decorate(function: Marked) -> Marked:
        @functools.wraps(function)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise not_emulated(function.__qualname__.removesuffix(".__init__"), why)

        return cast(Marked, _mark(refuse, Mark("refused", why)))

    return decorate


def accepted(why: str) -> Callable[[Marked], Marked]:
    """Says that a call is taken and recorded, and changes nothing here: it tunes the speed or memory of real hardware."""
    return lambda function: _mark(function, Mark("accepted", _sentence(why)))


def partly(why: str) -> Callable[[Marked], Marked]:
    """Says which part of what the function can do is not emulated; the function itself raises for that part."""
    return lambda function: _mark(function, Mark("partly", _sentence(why)))


def not_emulated(name: str, why: str) -> Error:
    """The error for a call that exists in PopTorch and not here."""
    from portwright.emulate.poptorch._impl import createPoptorchError

    error: Error = createPoptorchError(f"{name} is not emulated by Portwright: {why}")
    return error


def mark_of(thing: Any) -> Mark:
    """What the emulator does with a function, property or class."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    holder = (
        vars(thing) if isinstance(thing, type) else getattr(thing, "__dict__", {})
    )  # not a base class's mark
    found = holder.get(_MARK, Mark("emulated", ""))
    assert isinstance(found, Mark)
    return found


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _mark(function: Any, mark: Mark) -> Any:
    setattr(function, _MARK, mark)
    return function
