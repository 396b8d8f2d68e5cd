"""Looking up rows of a table by integer ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.layers.base import BaseLayer


def look_up_few(layer: BaseLayer, table: Any, ids: Any) -> Any:
    """Looks up by a product with one-hot rows: for few rows that is quicker, and its gradient is not sparse."""
    one_hot = tf.one_hot(as_ids("segment_ids", ids), table.shape[0], dtype=table.dtype)
    return layer.to_compute(tf.tensordot(one_hot, tf.convert_to_tensor(table), 1))


def as_ids(name: str, ids: Any) -> Any:
    """Ids of a type that every kernel looks up."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer or ids.shape.rank in (None, 0):
        raise UserError(
            f"{name} is {ids.dtype.name} of shape {ids.shape}.",
            "Give integer ids of shape [batch, sequence].",
        )
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)
