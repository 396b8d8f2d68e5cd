"""Activations by name, among them gated ones that split their input into a value and a gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from portwright.errors import UserError, suggest

Activation = Callable[..., Tensor]
"""Takes a tensor; a gated one takes a value and its gate, or one tensor that holds both."""


def quick_gelu(x: Tensor) -> Tensor:
    """GELU approximated by a sigmoid, as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


def squared_relu(x: Tensor) -> Tensor:
    """The square of relu (Primer, arXiv 2109.08668)."""
    return F.relu(x).square()


def squared_gelu(x: Tensor) -> Tensor:
    """The square of the exact GELU."""
    return F.gelu(x).square()


def linear(x: Tensor) -> Tensor:
    """Changes nothing."""
    return x


def _gated(value: Tensor, gate: Tensor | None, function: Callable[[Tensor], Tensor]) -> Tensor:
    if gate is None:
        if value.dim() == 0 or value.shape[-1] % 2:
            raise UserError(
                f"A gated activation got one tensor of shape {tuple(value.shape)}, which cannot be halved.",
                "Give it an even last dimension (value first, then gate), or the two as separate tensors.",
            )
        value, gate = value.chunk(2, dim=-1)
    elif gate.shape != value.shape:
        raise UserError(
            f"A gated activation got a value of shape {tuple(value.shape)} and a gate of {tuple(gate.shape)}.",
            "Give both the same shape.",
        )
    return value * function(gate)


# The value comes before the gate, as in torch's F.glu and in the model zoo.
def liglu(value: Tensor, gate: Tensor | None = None) -> Tensor:
    """The product of value and gate (arXiv 2002.05202 calls it bilinear)."""
    return _gated(value, gate, linear)


def geglu(value: Tensor, gate: Tensor | None = None) -> Tensor:
    """The value times the exact GELU of the gate."""
    return _gated(value, gate, F.gelu)


def reglu(value: Tensor, gate: Tensor | None = None) -> Tensor:
    """The value times the relu of the gate."""
    return _gated(value, gate, F.relu)


def swiglu(value: Tensor, gate: Tensor | None = None) -> Tensor:
    """The value times the silu of the gate."""
    return _gated(value, gate, F.silu)


# gelu_new and gelu_fast write the same tanh approximation in two ways; torch has it as one fused kernel.
_tanh_gelu = partial(F.gelu, approximate="tanh")


def geglu_new(value: Tensor, gate: Tensor | None = None) -> Tensor:
    """The value times the tanh approximation of GELU of the gate (T5 1.1)."""
    return _gated(value, gate, _tanh_gelu)


_GATED: dict[str, Activation] = {
    "liglu": liglu,
    "geglu": geglu,
    "geglu_new": geglu_new,
    "reglu": reglu,
    "swiglu": swiglu,
}

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "quick_gelu": quick_gelu,
    "squared_gelu": squared_gelu,
    "squared_relu": squared_relu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "linear": linear,
    **_GATED,
}


def get_activation(activation: str | Activation | None) -> Activation:
    """Finds an activation by its name, whatever its case; a callable is returned as it is, None is linear.

    Gated activations take one tensor whose last dimension has the value first, then the gate, or two tensors:
    `swiglu(value, gate)`.
    """
    if activation is None:
        return linear
    if isinstance(activation, type):
        raise UserError(
            f"The activation is the class {activation.__name__}, not a function.",
            f"Give an instance, {activation.__name__}(), or a name.",
        )
    if isinstance(activation, str):
        name = activation.strip().lower()
        if name not in ACTIVATIONS:
            raise UserError(f"Unknown activation {activation!r}.", suggest(name, ACTIVATIONS))
        return ACTIVATIONS[name]
    if not callable(activation):
        raise UserError(
            f"The activation is {activation!r}, of type {type(activation).__name__}.",
            f"Give a name, a callable or an nn.Module. {suggest('', ACTIVATIONS)}",
        )
    return activation


def is_gated(activation: str | Activation | None) -> bool:
    """Whether an activation takes a value and a gate, so that the layer before it must have twice the width.

    A callable of your own is gated when it has a true attribute `is_gated`.
    """
    if isinstance(activation, str):
        return get_activation(activation) in _GATED.values()
    return activation in _GATED.values() or bool(getattr(activation, "is_gated", False))
