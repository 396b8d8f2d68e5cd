"""Dropout, drawn as tf.nn.dropout draws it or from the step alone."""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.layers.base import BaseLayer, check_rate

_STATELESS = "portwright/stateless_dropout"  # a graph collection: the seed, once asked for


def use_stateless_dropout(seed: int = 0) -> None:
    """From here on, dropout of this graph depends on the seed, the place and global_step alone.

    A run that was killed and resumed then draws what an unbroken one would have drawn. With gradient accumulation
    every batch of an update draws the same; leave it off there.
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
