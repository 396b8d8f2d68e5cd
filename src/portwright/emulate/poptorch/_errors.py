"""Errors of the emulator that are caught by whichever class the real package raises at the same place."""

from __future__ import annotations

from portwright.emulate.poptorch import _impl, poptorch_core

NOT_COMPILED = (
    "the model was not compiled yet, or was destroyed. Call it, compile() it or load an executable first."
)


class AssertedError(poptorch_core.Error, AssertionError):
    """Where the real package fails an assertion."""


class StateError(poptorch_core.Error, RuntimeError):
    """Where the real package raises a RuntimeError."""


class RangeError(poptorch_core.Error, IndexError):
    """Where torch raises an IndexError."""


def refuse(message: str, kind: type[poptorch_core.Error] = poptorch_core.Error) -> poptorch_core.Error:
    """Makes the error of a broken rule; the caller raises it."""
    if kind is poptorch_core.Error:
        made: poptorch_core.Error = _impl.createPoptorchError(message)
        return made
    error = kind(message)
    error.type, error.message = "poptorch_py_error", message
    return error
