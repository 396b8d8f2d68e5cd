"""Streaming metrics for host calls: pairs of a value and of what updates it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Metric = tuple[Any, Any]


def mean(values: Any, weights: Any = None) -> Metric:
    return _pair(tf.compat.v1.metrics.mean(values, weights))


def perplexity(losses: Any, weights: Any) -> Metric:
    """e to the mean loss of all tokens that count, over all batches."""
    value, update = tf.compat.v1.metrics.mean(losses, weights)
    return tf.exp(value), tf.exp(update)


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    return _pair(tf.compat.v1.metrics.accuracy(labels, predictions, weights))


def mean_iou(labels: Any, predictions: Any, num_classes: int) -> Metric:
    """Intersection over union, of all pixels of a class; the mean of the classes."""
    return _pair(tf.compat.v1.metrics.mean_iou(labels, predictions, num_classes))


def mean_per_class_accuracy(labels: Any, predictions: Any, num_classes: int) -> Metric:
    return _pair(tf.compat.v1.metrics.mean_per_class_accuracy(labels, predictions, num_classes))


def dice(labels: Any, predictions: Any) -> Metric:
    """Twice what both call defective over the sum of what each does: pixels of all batches, whatever their class."""
    found = tf.cast(predictions > 0, tf.float32)
    true = tf.cast(labels > 0, tf.float32)
    both = found * true * tf.cast(tf.equal(labels, predictions), tf.float32)
    overlap = tf.compat.v1.metrics.mean(both)
    total = tf.compat.v1.metrics.mean(found + true)
    value, update = (tf.math.divide_no_nan(2 * o, t) for o, t in zip(overlap, total, strict=True))
    return value, update


def _pair(made: Any) -> Metric:
    value, update = made
    return value, update
