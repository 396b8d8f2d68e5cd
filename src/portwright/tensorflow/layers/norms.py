"""Norms by name, computed in float32 or wider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, last_width, wide_type
from portwright.tensorflow.layers.initializers import get_initializer

NormFactory = Callable[..., BaseLayer]


class LayerNorm(BaseLayer):
    """Normalizes the last dimension; weights are named gamma and beta, as TensorFlow's are."""

    def __init__(
        self, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.eps, self.elementwise_affine, self.bias = float(eps), elementwise_affine, bias
        self.gamma = self.beta = None

    def build(self, input_shape: Any) -> None:
        width = tf.TensorShape(input_shape)[-1]
        if self.elementwise_affine:
            self.gamma = self.add_parameter("gamma", (width,), get_initializer("ones"))
            if self.bias:
                self.beta = self.add_parameter("beta", (width,), get_initializer("zeros"))
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        last_width(inputs, "what is to be normed")
        wide = tf.cast(inputs, wide_type(self.compute_dtype))
        mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
        centered = wide - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        normed = centered * tf.math.rsqrt(variance + self.eps)
        return self.to_compute(_affine(normed, self.gamma, self.beta))


class RMSNorm(BaseLayer):
    """Divides the last dimension by its root mean square; T5's norm, with eps 1e-6 as there."""

    def __init__(self, eps: float = 1e-6, elementwise_affine: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.eps, self.elementwise_affine = float(eps), elementwise_affine
        self.gamma = None

    def build(self, input_shape: Any) -> None:
        if self.elementwise_affine:
            width = tf.TensorShape(input_shape)[-1]
            self.gamma = self.add_parameter("gamma", (width,), get_initializer("ones"))
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        last_width(inputs, "what is to be normed")
        wide = tf.cast(inputs, wide_type(self.compute_dtype))
        mean_square = tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True)
        return self.to_compute(_affine(wide * tf.math.rsqrt(mean_square + self.eps), self.gamma, None))


def _affine(normed: Any, gamma: Any, beta: Any) -> Any:
    if gamma is not None:
        normed = normed * tf.cast(gamma, normed.dtype)
    return normed if beta is None else normed + tf.cast(beta, normed.dtype)


_NORMS: dict[str, NormFactory] = {
    "layernorm": LayerNorm,
    "biasless": partial(LayerNorm, bias=False),
    "biasless-layernorm": partial(LayerNorm, bias=False),
    "nonparametric-layernorm": partial(LayerNorm, elementwise_affine=False),
    "rmsnorm": RMSNorm,
}


def get_norm(norm: str | NormFactory) -> NormFactory:
    """Finds what makes a norm, to be called with `eps`, `name` and `dtype`; a class or function is returned as it is."""
    if isinstance(norm, str):
        name = norm.strip().lower()
        if name not in _NORMS:
            raise UserError(f"Unknown norm {norm!r}.", suggest(name, _NORMS))
        return _NORMS[name]
    if isinstance(norm, tf.keras.layers.Layer) or not callable(norm):
        raise UserError(
            f"The norm is {type(norm).__name__} {norm!r}, not what makes one.",
            f"Give a name or a class. {suggest('', _NORMS)}",
        )
    return norm
