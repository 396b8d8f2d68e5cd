"""Parts of every model_fn: the spec of a mode, the precision policy, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.optimizers import make_train_op
from portwright.tensorflow.spec import CSEstimatorSpec


def make_spec(
    mode: str,
    params: Mapping[str, Any],
    *,
    predictions: Any = None,
    loss: Any = None,
    host_call: Any = None,
) -> CSEstimatorSpec:
    """The spec of a mode: the loss and its train op, or the loss and metrics, or predictions alone."""
    if mode == ModeKeys.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions=predictions)
    if mode == ModeKeys.TRAIN:
        return CSEstimatorSpec(mode=mode, loss=loss, train_op=make_train_op(loss, params["optimizer"]))
    return CSEstimatorSpec(mode=mode, loss=loss, host_call=host_call)


def policy_of(model_params: Mapping[str, Any]) -> Any:
    """Keras's policy for `mixed_precision` and `fp16_type`: float32, mixed_float16 or mixed_bfloat16."""
    if not model_params["mixed_precision"]:
        return tf.keras.mixed_precision.Policy("float32")
    kind = model_params.get("fp16_type")
    if kind is None:
        kind = "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"
    return tf.keras.mixed_precision.Policy(f"mixed_{'bfloat16' if kind == 'cbfloat16' else kind}")


Metric = Any  # a pair: the value, and the op that adds a batch to it


def perplexity(losses: Any, weights: Any) -> Metric:
    """e to the mean loss of all tokens that count, over all batches."""
    return tuple(tf.exp(value) for value in tf.compat.v1.metrics.mean(losses, weights))


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    return tf.compat.v1.metrics.accuracy(labels, predictions, weights)


def mean_iou(labels: Any, predictions: Any, num_classes: int) -> Metric:
    """Intersection over union, of all pixels of a class; the mean of the classes."""
    return tf.compat.v1.metrics.mean_iou(labels, predictions, num_classes)


def mean_per_class_accuracy(labels: Any, predictions: Any, num_classes: int) -> Metric:
    return tf.compat.v1.metrics.mean_per_class_accuracy(labels, predictions, num_classes)


def dice(labels: Any, predictions: Any) -> Metric:
    """The Dice coefficient over all batches: twice the pixels that are defective in both, over the sum of those in each."""
    found = tf.cast(predictions > 0, tf.float32)
    true = tf.cast(labels > 0, tf.float32)
    both = found * true * tf.cast(tf.equal(labels, predictions), tf.float32)
    overlap = tf.compat.v1.metrics.mean(both)
    total = tf.compat.v1.metrics.mean(found + true)
    return tuple(tf.math.divide_no_nan(2 * o, t) for o, t in zip(overlap, total, strict=True))
