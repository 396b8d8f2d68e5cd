"""What of tf.contrib.data has no place in tf.data.experimental."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

Transformation = Callable[[Any], Any]


def batch_and_drop_remainder(batch_size: int) -> Transformation:
    """Batches of one size."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Any, padding_values: Any = None
) -> Transformation:
    """Padded batches of one size."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def assert_element_shape(expected_shapes: Any) -> Transformation:
    """Sets the shapes of elements, which fail where they differ."""

    def check(*parts: Any) -> Any:
        given = parts[0] if len(parts) == 1 else parts
        return tf.nest.map_structure(lambda shape, part: tf.ensure_shape(part, shape), expected_shapes, given)

    return lambda dataset: dataset.map(check)
