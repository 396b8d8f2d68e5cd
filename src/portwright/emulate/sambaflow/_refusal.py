"""How the emulator says no: one line that says what was received, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from portwright.emulate.sambaflow._names import REFUSED
from portwright.errors import UnsupportedError


class SambaFlowError(UnsupportedError, RuntimeError):
    """A rule of SambaFlow was broken, or something was asked that the emulator does not do."""


def refuse(name: str, why: str, instead: str = "") -> NoReturn:
    raise SambaFlowError(f"{name} is not emulated by Portwright: {why}", instead)


def not_emulated(name: str) -> Callable[..., Any]:
    """Stands where the vendor has a function or class of `REFUSED`: it can be imported and named, and raises when it is called."""
    why, instead = REFUSED[name]

    def call(*args: Any, **options: Any) -> NoReturn:
        refuse(name, why, instead)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__doc__ = f"Not emulated: {why}"
    return call
