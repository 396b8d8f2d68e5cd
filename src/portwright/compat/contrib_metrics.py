"""The functions of tf.contrib.metrics that tf.metrics does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
    """The share of predictions in this batch that equal their labels."""
    with tf.variable_scope(name, "accuracy", [predictions, labels]):
        right = tf.cast(tf.equal(predictions, labels), tf.float32)
        if weights is None:
            return tf.reduce_mean(right)
        weights = tf.cast(weights, tf.float32) * tf.ones_like(right)
        return tf.reduce_sum(right * weights) / tf.reduce_sum(weights)


def _predictions_first(name: str) -> Any:
    metric = getattr(tf.metrics, name)

    def streaming(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        return metric(labels, predictions, *args, **kwargs)

    streaming.__name__ = f"streaming_{name}"
    streaming.__doc__ = f"tf.metrics.{name} with the arguments the other way round."
    return streaming


streaming_accuracy = _predictions_first("accuracy")
streaming_mean_iou = _predictions_first("mean_iou")
streaming_mean_squared_error = _predictions_first("mean_squared_error")
streaming_mean = tf.metrics.mean


def aggregate_metric_map(names_to_tuples: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Turns a dict of (value, update) into a dict of values and one of updates."""
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
        return _listed(value, update, metrics_collections, updates_collections)


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
        return _listed(value, update, metrics_collections, updates_collections)


def _listed(value: Any, update: Any, metrics_collections: Any, updates_collections: Any) -> tuple[Any, Any]:
    tf.add_to_collections(metrics_collections or (), value)
    tf.add_to_collections(updates_collections or (), update)
    return value, update
