"""From a sequence to one vector."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.base import BaseLayer, wide_type
from portwright.tensorflow.layers.dense import Dense
from portwright.tensorflow.layers.initializers import InitializerSpec

POOLER_TYPES = ("mean", "max", "first", "last", "sum")


class PoolerLayer(BaseLayer):
    """Reduces an axis, 1 unless given: mean, max, first, last, sum, or None for no pooling.

    `padding_mask`, 1 for tokens and 0 for padding, keeps padding out of mean, max and sum, and lets `last` take the
    last token of each sequence. A sequence of padding alone gives zeros.
    """

    def __init__(self, pooler_type: str | None = "mean", axis: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if pooler_type is not None and pooler_type not in POOLER_TYPES:
            raise UserError(f"Unknown pooler_type {pooler_type!r}.", suggest(str(pooler_type), POOLER_TYPES))
        self.pooler_type, self.axis = pooler_type, axis

    def call(self, inputs: Any, padding_mask: Any = None) -> Any:
        x = tf.cast(inputs, wide_type(self.compute_dtype))
        kind, axis = self.pooler_type, self.axis
        if kind is None:
            return self.to_compute(inputs)
        if kind == "first":
            return self.to_compute(tf.gather(x, 0, axis=axis))
        if padding_mask is None:
            if kind == "last":
                return self.to_compute(tf.gather(x, x.shape[axis] - 1, axis=axis))
            reduce = {"mean": tf.reduce_mean, "max": tf.reduce_max, "sum": tf.reduce_sum}[kind]
            return self.to_compute(reduce(x, axis=axis))
        counted = tf.cast(padding_mask, x.dtype)
        while counted.shape.rank < x.shape.rank:
            counted = counted[..., None]
        if kind == "max":
            hidden = tf.where(counted > 0, x, tf.constant(x.dtype.min, x.dtype))
            any_token = tf.reduce_max(counted, axis=axis) > 0
            return self.to_compute(tf.where(any_token, tf.reduce_max(hidden, axis=axis), 0.0))
        if kind == "last":
            # One token counts: the one after which none does.
            after = tf.cumsum(counted, axis=axis, exclusive=True, reverse=True)
            counted = counted * tf.cast(tf.equal(after, 0.0), x.dtype)
        total = tf.reduce_sum(x * counted, axis=axis)
        if kind == "mean":
            total = tf.math.divide_no_nan(total, tf.reduce_sum(counted, axis=axis))
        return self.to_compute(total)


class BertPooler(BaseLayer):
    """The first token through a dense layer and tanh, as BERT's classifiers read it."""

    def __init__(
        self,
        units: int,
        activation: str | Activation = "tanh",
        kernel_initializer: InitializerSpec = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dense = Dense(
            units, activation, kernel_initializer=kernel_initializer, name="dense", dtype=self.policy
        )

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs[:, 0])
