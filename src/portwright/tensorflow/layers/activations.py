"""Activations by name, and the gated ones that split their input into a value and a gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest

Activation = Callable[..., Any]
"""Takes a tensor; a gated one takes a value and its gate, or one tensor that holds both."""


def linear(x: Any) -> Any:
    """Changes nothing."""
    return x


def gelu(x: Any) -> Any:
    """The exact GELU, by the error function."""
    return tf.nn.gelu(x, approximate=False)


def gelu_new(x: Any) -> Any:
    """GELU's approximation by tanh."""
    return tf.nn.gelu(x, approximate=True)


def quick_gelu(x: Any) -> Any:
    """GELU by way of a sigmoid, as CLIP has it."""
    return x * tf.sigmoid(1.702 * x)


def squared_relu(x: Any) -> Any:
    """The square of relu (Primer, arXiv 2109.08668)."""
    return tf.square(tf.nn.relu(x))


def squared_gelu(x: Any) -> Any:
    """The square of the exact GELU."""
    return tf.square(gelu(x))


def mish(x: Any) -> Any:
    """The input times the tanh of its softplus (arXiv 1908.08681)."""
    return x * tf.tanh(tf.math.softplus(x))


def _gated(value: Any, gate: Any, function: Callable[[Any], Any]) -> Any:
    if gate is None:
        width = value.shape[-1] if value.shape.rank else None
        if width is None or width % 2:
            raise UserError(
                f"A gated activation got one tensor of shape {value.shape}, which cannot be halved.",
                "Give it an even last dimension (value first, then gate), or the two as separate tensors.",
            )
        value, gate = tf.split(value, 2, axis=-1)
    elif not gate.shape.is_compatible_with(value.shape):
        raise UserError(
            f"A gated activation got a value of shape {value.shape} and a gate of {gate.shape}.",
            "Give both the same shape.",
        )
    return value * function(gate)


# The value comes before the gate, as in Portwright's PyTorch layers.
def liglu(value: Any, gate: Any = None) -> Any:
    """The product of value and gate (arXiv 2002.05202 calls it bilinear)."""
    return _gated(value, gate, linear)


def geglu(value: Any, gate: Any = None) -> Any:
    """The value times the exact GELU of the gate."""
    return _gated(value, gate, gelu)


def geglu_new(value: Any, gate: Any = None) -> Any:
    """The value times the tanh GELU of the gate, as T5 1.1 has it."""
    return _gated(value, gate, gelu_new)


def reglu(value: Any, gate: Any = None) -> Any:
    """The value times the relu of the gate."""
    return _gated(value, gate, tf.nn.relu)


def swiglu(value: Any, gate: Any = None) -> Any:
    """The value times the silu of the gate."""
    return _gated(value, gate, tf.nn.silu)


_GATED: dict[str, Activation] = {
    "liglu": liglu,
    "geglu": geglu,
    "geglu_new": geglu_new,
    "reglu": reglu,
    "swiglu": swiglu,
}

ACTIVATIONS: dict[str, Activation] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": partial(tf.nn.leaky_relu, alpha=0.01),  # torch's slope; TensorFlow's own is 0.2
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "silu": tf.nn.silu,
    "swish": tf.nn.silu,
    "gelu": gelu,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_new,
    "quick_gelu": quick_gelu,
    "squared_gelu": squared_gelu,
    "squared_relu": squared_relu,
    "mish": mish,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "linear": linear,
    **_GATED,
}


def get_activation(activation: str | Activation | None) -> Activation:
    """Finds an activation by its name, whatever its case; a callable is returned as it is, None is linear.

    Gated activations halve the last dimension of one tensor (value first, then gate), or take the two apart:
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
            f"Give a name or a callable. {suggest('', ACTIVATIONS)}",
        )
    return activation


def is_gated(activation: str | Activation | None) -> bool:
    """Whether an activation takes a value and a gate, so that the layer before it must give twice the width.

    A callable of your own is gated when it has a true attribute `is_gated`.
    """
    if isinstance(activation, str):
        return get_activation(activation) in _GATED.values()
    return activation in _GATED.values() or bool(getattr(activation, "is_gated", False))
