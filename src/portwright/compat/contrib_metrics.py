"""tf.contrib.metrics beside those that tf.metrics took over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError

confusion_matrix = tf.confusion_matrix


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
    """The share of equal ones in this batch."""
    with tf.variable_scope(name, "accuracy", [predictions, labels]):
        right = tf.cast(tf.equal(predictions, labels), tf.float32)
        if weights is None:
            return tf.reduce_mean(right)
        weights = tf.cast(weights, tf.float32) * tf.ones_like(right)
        return tf.reduce_sum(right * weights) / tf.reduce_sum(weights)


def streaming_accuracy(predictions: Any, labels: Any, weights: Any = None, *args: Any, **kwargs: Any) -> Any:
    """tf.metrics.accuracy with the arguments the other way round."""
    return tf.metrics.accuracy(labels, predictions, weights, *args, **kwargs)


def _turned(name: str) -> Any:
    metric = getattr(tf.metrics, name)

    def streaming(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        return metric(labels, predictions, *args, **kwargs)

    streaming.__name__ = f"streaming_{name}"
    streaming.__doc__ = f"tf.metrics.{name} with the arguments the other way round."
    return streaming


streaming_auc = _turned("auc")
streaming_mean_absolute_error = _turned("mean_absolute_error")
streaming_mean_iou = _turned("mean_iou")
streaming_mean_squared_error = _turned("mean_squared_error")
streaming_precision = _turned("precision")
streaming_recall = _turned("recall")
streaming_root_mean_squared_error = _turned("root_mean_squared_error")
streaming_true_positives = _turned("true_positives")
streaming_true_negatives = _turned("true_negatives")
streaming_false_positives = _turned("false_positives")
streaming_false_negatives = _turned("false_negatives")
streaming_mean = tf.metrics.mean
streaming_mean_tensor = tf.metrics.mean_tensor


def f1_score(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """The best F1 over thresholds of the predictions."""
    with tf.variable_scope(name, "f1", (labels, predictions, weights)):
        step = 1.0 / (num_thresholds - 1)
        thresholds = [-1e-7, *(step * (i + 1) for i in range(num_thresholds - 2)), 1.0 + 1e-7]
        predictions = tf.cast(predictions, tf.float32)
        precision, update_1 = tf.metrics.precision_at_thresholds(labels, predictions, thresholds, weights)
        recall, update_2 = tf.metrics.recall_at_thresholds(labels, predictions, thresholds, weights)

        def best(one: Any, other: Any) -> Any:
            return tf.reduce_max(2.0 * one * other / tf.maximum(one + other, 1e-7))

        value = best(precision, recall)
        update = best(update_1, update_2)
        if metrics_collections:
            tf.add_to_collections(metrics_collections, value)
        if updates_collections:
            tf.add_to_collections(updates_collections, update)
        return value, update


def aggregate_metrics(*value_update_tuples: Any) -> tuple[list[Any], list[Any]]:
    """Pairs as two lists."""
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Named pairs as two dicts."""
    return {n: v for n, (v, _) in names_to_tuples.items()}, {n: u for n, (_, u) in names_to_tuples.items()}


def streaming_concat(
    values: Any,
    axis: int = 0,
    max_size: int | None = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """All values so far, one batch behind the other along the first axis."""
    if axis != 0 or max_size is not None:
        raise UserError("streaming_concat has another axis or a max_size.", "Leave them out.")
    with tf.variable_scope(name, "streaming_concat", (values,)):
        values = tf.convert_to_tensor(values)
        shape = [0, *values.shape.as_list()[1:]]
        held = tf.get_variable(
            "array", initializer=lambda: tf.zeros(shape, values.dtype), validate_shape=False, trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES], use_resource=False,
        )  # fmt: skip
        update = tf.assign(held, tf.concat([held, values], 0), validate_shape=False)
        update.set_shape([None, *shape[1:]])
        value = tf.identity(held)
        value.set_shape([None, *shape[1:]])
        if metrics_collections:
            tf.add_to_collections(metrics_collections, value)
        if updates_collections:
            tf.add_to_collections(updates_collections, update)
        return value, update


def streaming_pearson_correlation(
    predictions: Any,
    labels: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """How far predictions and labels lie on a line, over all batches."""
    with tf.variable_scope(name, "pearson_r", (predictions, labels, weights)):
        x, y = tf.cast(predictions, tf.float64), tf.cast(labels, tf.float64)
        sums = [tf.metrics.mean(part, weights) for part in (x, y, x * x, y * y, x * y)]

        def correlation(means: Any) -> Any:
            mx, my, mxx, myy, mxy = (tf.cast(mean, tf.float64) for mean in means)
            spread = tf.sqrt(tf.maximum(mxx - mx * mx, 0.0) * tf.maximum(myy - my * my, 0.0))
            return tf.cast(tf.math.divide_no_nan(mxy - mx * my, spread), tf.float32)

        value, update = correlation([v for v, _ in sums]), correlation([u for _, u in sums])
        if metrics_collections:
            tf.add_to_collections(metrics_collections, value)
        if updates_collections:
            tf.add_to_collections(updates_collections, update)
        return value, update
