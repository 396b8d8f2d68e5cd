"""Norms and dropout."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, check_rate, last_width, wide_type
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
    """Finds the class or function that makes a norm from `eps`, `name` and `dtype`; a callable is returned as it is."""
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


_STATELESS = "portwright/stateless_dropout"  # a graph collection that holds the seed, if use_stateless_dropout was called


def use_stateless_dropout(seed: int = 0) -> None:
    """Makes later dropout in this graph depend on the seed, the layer's place and global_step alone.

    A resumed run then draws the same numbers as an uninterrupted one. Do not use it with gradient accumulation: every
    batch of an update would draw the same.
    """
    if tf.executing_eagerly():
        raise UserError("Stateless dropout was asked for outside of a graph.", "Call it in a model_fn.")
    tf.compat.v1.get_default_graph().get_collection_ref(_STATELESS)[:] = [int(seed)]


class Dropout(BaseLayer):
    """Zeroes a share of the input in training, and scales the rest up."""

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("dropout", rate)
        self.noise_shape = noise_shape
        self.seed = seed

    def call(self, inputs: Any, training: bool = False) -> Any:
        return drop(
            self.to_compute(inputs), self.rate, training, seed=self.seed, noise_shape=self.noise_shape
        )


DropoutLayer = Dropout


def drop(x: Any, rate: float, training: bool, *, seed: int | None = None, noise_shape: Any = None) -> Any:
    """Dropout as a function; `training` is True or False, not a tensor."""
    if tf.is_tensor(training):
        raise UserError(
            "`training` is a tensor.",
            "Give True or False: a model_fn knows its mode when it builds the graph.",
        )
    if not training or rate == 0.0:
        return x
    if not tf.executing_eagerly():
        chosen = tf.compat.v1.get_collection(_STATELESS)
        if chosen:
            return _drop_stateless(x, rate, chosen[0], seed, noise_shape)
    return tf.nn.dropout(x, rate=rate, seed=seed, noise_shape=noise_shape)


def _drop_stateless(x: Any, rate: float, graph_seed: int, seed: int | None, noise_shape: Any) -> Any:
    graph = tf.compat.v1.get_default_graph()
    place = zlib.crc32(graph.unique_name("stateless_dropout").encode()) ^ (seed or 0) ^ graph_seed
    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.int64)
    return tf.nn.experimental.stateless_dropout(
        x, rate=rate, seed=tf.stack([tf.constant(place, tf.int64), step]), noise_shape=noise_shape
    )
