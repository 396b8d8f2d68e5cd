"""Clipping of gradients, dense and sparse, by their joint norm or by value."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def without_duplicates(gradient: Any) -> Any:
    """The same sparse gradient with each row once, without which neither its norm nor its size can be told."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def as_dense(gradient: Any, num_rows: Any) -> Any:
    """A sparse gradient as a whole tensor."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, num_rows)


def values_of(gradient: Any) -> Any:
    """The numbers of a gradient, whether dense or sparse."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Any, values: Any) -> Any:
    """A gradient of the same places with other numbers."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def gradient_norm(gradients: list[Any]) -> Any:
    """The 2-norm of all gradients as one vector, in float32; rows of sparse ones must be there once."""
    squares = [tf.reduce_sum(tf.square(tf.cast(values_of(gradient), tf.float32))) for gradient in gradients]
    return tf.sqrt(tf.add_n(squares))


def clip_gradients(
    gradients: list[Any], max_norm: float | None, max_value: float | None, norm: Any
) -> list[Any]:
    """Scales all gradients so that their joint norm stays under `max_norm`, or clamps each number to `max_value`."""
    if max_value is not None:
        return [
            with_values(gradient, tf.clip_by_value(values_of(gradient), -max_value, max_value))
            for gradient in gradients
        ]
    if max_norm is None:
        return gradients
    factor = tf.minimum(max_norm / (norm + 1e-6), 1.0)  # as on the PyTorch side
    return [
        with_values(gradient, values_of(gradient) * tf.cast(factor, values_of(gradient).dtype))
        for gradient in gradients
    ]
