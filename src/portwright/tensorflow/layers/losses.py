"""Cross-entropy of tokens, and the losses that language models are trained with.

Everything is computed in float32 or wider, whatever the type of the logits.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.base import BaseLayer, wide_type

_SCALINGS = ("num_tokens", "batch_size", "none")


def token_cross_entropy(
    logits: Any, labels: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    """Gives the cross-entropy of each label, in the labels' shape; 0 where the label is `ignore_index`.

    `label_smoothing` spreads that share of the target over all classes, as torch.nn.CrossEntropyLoss does.
    """
    if not 0 <= label_smoothing <= 1:
        raise UserError(f"label_smoothing is {label_smoothing}.", "Give a number from 0 to 1.")
    if not labels.dtype.is_integer:
        raise UserError(f"Labels are {labels.dtype.name}.", "Give integers.")
    if not logits.shape[:-1].is_compatible_with(labels.shape):
        raise UserError(
            f"Logits have the shape {logits.shape} and labels {labels.shape}.",
            "Give one label for each row of logits.",
        )
    wide = tf.cast(logits, wide_type(logits.dtype))
    counted = tf.not_equal(labels, tf.cast(ignore_index, labels.dtype))
    safe = tf.where(counted, labels, tf.zeros_like(labels))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=safe, logits=wide)
    if label_smoothing:
        uniform = tf.reduce_logsumexp(wide, axis=-1) - tf.reduce_mean(wide, axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return tf.where(counted, losses, tf.zeros_like(losses))


def masked_cross_entropy(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    loss_scaling: str = "num_tokens",
    loss_weight: float = 1.0,
) -> Any:
    """One number: the losses times `weights`, which are 0 for labels that do not count, summed and divided.

    `loss_scaling` divides by the sum of the weights of the labels that count (`num_tokens`; 0 over none), by the
    number of sequences (`batch_size`), or by nothing (`none`).
    """
    if loss_scaling not in _SCALINGS:
        raise UserError(f"loss_scaling is {loss_scaling!r}.", suggest(str(loss_scaling).lower(), _SCALINGS))
    losses = token_cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing)
    counted = tf.cast(tf.not_equal(labels, tf.cast(ignore_index, labels.dtype)), losses.dtype)
    if weights is not None:
        if not weights.shape.is_compatible_with(labels.shape):
            raise UserError(
                f"weights have the shape {weights.shape} and labels {labels.shape}.",
                "Give one for each label.",
            )
        counted = counted * tf.cast(weights, losses.dtype)
    total = tf.reduce_sum(losses * counted)
    if loss_scaling == "num_tokens":
        total = tf.math.divide_no_nan(total, tf.reduce_sum(counted))
    elif loss_scaling == "batch_size":
        total = total / tf.cast(tf.shape(labels)[0], total.dtype)
    return total * loss_weight


class CrossEntropyFromLogitsLayer(BaseLayer):
    """The cross-entropy of each label as a layer; arguments in the model zoo's order: labels, logits."""

    def __init__(self, label_smoothing: float = 0.0, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index

    def call(self, labels: Any, logits: Any) -> Any:
        return token_cross_entropy(
            logits, labels, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing
        )
