"""Initializers and regularizers of tf.contrib.layers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError

Initializer = Callable[..., Any]
Regularizer = Callable[[Any], Any]


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = tf.float32,
) -> Initializer:
    """Draws with a variance of `factor` over the number of inputs, outputs, or their mean."""
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise UserError(f"mode of an initializer is {mode!r}.", "Give FAN_IN, FAN_OUT or FAN_AVG.")

    def draw(shape: Any, dtype: Any = dtype, partition_info: Any = None) -> Any:
        sizes = [int(size) for size in (partition_info.full_shape if partition_info else shape)]
        field = math.prod(sizes[:-2])
        fan_in = float(sizes[-2] if len(sizes) > 1 else sizes[-1]) * field
        fan_out = float(sizes[-1]) * field
        n = {"FAN_IN": fan_in, "FAN_OUT": fan_out, "FAN_AVG": (fan_in + fan_out) / 2.0}[mode]
        if uniform:
            limit = math.sqrt(3.0 * factor / n)
            return tf.random_uniform(shape, -limit, limit, dtype, seed=seed)
        # 1.3 makes up for what truncation takes from the variance
        return tf.truncated_normal(shape, 0.0, math.sqrt(1.3 * factor / n), dtype, seed=seed)

    return draw


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = tf.float32) -> Initializer:
    """Glorot's."""
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer


def _check(scale: Any) -> bool:
    if not isinstance(scale, numbers.Real) or float(scale) < 0:
        raise UserError(f"the scale of a regularizer is {scale!r}.", "Give a number of 0 or more.")
    return float(scale) > 0


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times the sum of the absolute weights."""
    if not _check(scale):
        return lambda weights: None
    return lambda weights: scale * tf.reduce_sum(tf.abs(weights))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times half the sum of the squared weights."""
    if not _check(scale):
        return lambda weights: None
    return lambda weights: scale * tf.nn.l2_loss(weights)


def apply_regularization(regularizer: Regularizer, weights_list: Sequence[Any] | None = None) -> Any:
    """The sum over weights, those of the graph where none are named, which is also added to its losses."""
    weights = tf.get_collection(tf.GraphKeys.WEIGHTS) if weights_list is None else weights_list
    penalties = [regularizer(one) for one in weights]
    kept = [tf.constant(0.0) if one is None else one for one in penalties]
    total = tf.add_n(kept) if kept else tf.constant(0.0)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, total)
    return total
