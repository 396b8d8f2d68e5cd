"""Errors of the emulator, which are caught by whichever class the real package raises at the same place."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.poptorch import poptorch_core

_TYPE = "poptorch_py_error"
NOT_COMPILED = "the model was not compiled yet, or was destroyed. Call it or compile() it first."


class AssertedError(poptorch_core.Error, AssertionError):
    """Where the real package fails an assertion."""


class StateError(poptorch_core.Error, RuntimeError):
    """Where the real package raises a RuntimeError."""


class RangeError(poptorch_core.Error, IndexError):
    """Where torch raises an IndexError."""


def refuse(message: str, kind: type[poptorch_core.Error] = poptorch_core.Error) -> poptorch_core.Error:
    """Makes the error of a broken rule; the caller raises it."""
    error = kind(f"'{_TYPE}': {message}" if kind is poptorch_core.Error else message)
    error.type, error.message = _TYPE, message
    return error


def createPoptorchError(msg):
    """Makes the error of a call or a program that PopTorch does not take, to be raised by the caller."""
    return refuse(msg)


def asserted(message: str) -> poptorch_core.Error:
    """The error where the real package fails an assertion: caught as either."""
    return refuse(message, AssertedError)


def told(value: Any) -> str:
    """A value for a message; a tensor of the graph has no values to show."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {list(value.shape)}"
    return repr(value)
