"""tf.contrib.losses: its arguments are in another order than those of tf.losses, and it accepts one weight for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

get_losses, get_total_loss = tf.losses.get_losses, tf.losses.get_total_loss
get_regularization_losses = tf.losses.get_regularization_losses


def _with_order(name: str, *order: str) -> Callable[..., Any]:
    loss_of = getattr(tf.losses, name)

    def loss(*given: Any, **named: Any) -> Any:
        named |= dict(zip(order, given, strict=False))
        if "weights" in named and "softmax" not in name:  # softmax losses have one loss for each row already
            named["weights"] = _wide(named["weights"], named[order[0]])
        return loss_of(**named)

    return loss


def _wide(weights: Any, values: Any) -> Any:
    weights, values = tf.cast(weights, tf.float32), tf.convert_to_tensor(values)
    missing = values.shape.ndims - weights.shape.ndims
    return (
        tf.reshape(weights, tf.concat([tf.shape(weights), [1] * missing], 0))
        if weights.shape.ndims and missing > 0
        else weights
    )


mean_squared_error = _with_order("mean_squared_error", "predictions", "labels", "weights", "scope")
log_loss = _with_order("log_loss", "predictions", "labels", "weights", "epsilon", "scope")
softmax_cross_entropy = _with_order(
    "softmax_cross_entropy", "logits", "onehot_labels", "weights", "label_smoothing", "scope"
)
