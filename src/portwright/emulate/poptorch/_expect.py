"""Checks of what PopTorch's functions are given."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.poptorch import _errors, _impl, poptorch_core


def asserted(message: str) -> poptorch_core.Error:
    """The error where the real package fails an assertion: caught as either."""
    return _errors.refuse(message, _errors.AssertedError)


def expect_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise _impl.createPoptorchError(f"{name} must be a torch.Tensor, not {type(value).__name__}.")


def expect_int(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _impl.createPoptorchError(
            f"{name} must be an integer that is known when the model is compiled, not {told(value)}."
        )


def told(value: Any) -> str:
    """A value for a message; a tensor of the graph has no values to show."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {list(value.shape)}"
    return repr(value)
