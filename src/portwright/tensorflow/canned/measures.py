"""The metrics of heads, each in two forms: Keras's for tf.estimator, TensorFlow 1's for tf.compat.v1.estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

v1 = tf.compat.v1

Kind = Literal["mean", "accuracy", "precision", "recall", "auc", "auc_pr", "baseline"]


@dataclass(frozen=True)
class Measure:
    """A metric to report; "mean" and "baseline" take (values, weights), the others (labels, predictions, weights)."""

    kind: Kind
    threshold: float | None = None  # with a threshold predictions are probabilities, else classes

    def as_keras(self, name: str) -> Any:
        """A new Keras metric."""
        if self.kind == "accuracy":
            if self.threshold is not None:
                return tf.keras.metrics.BinaryAccuracy(name=name, threshold=self.threshold)
            return tf.keras.metrics.Accuracy(name=name)
        if self.kind in ("precision", "recall"):
            make = tf.keras.metrics.Precision if self.kind == "precision" else tf.keras.metrics.Recall
            return make(name=name, thresholds=self.threshold)
        if self.kind in ("auc", "auc_pr"):
            return tf.keras.metrics.AUC(name=name, curve="PR" if self.kind == "auc_pr" else "ROC")
        return (AccuracyBaseline if self.kind == "baseline" else tf.keras.metrics.Mean)(name=name)

    def as_ops(self, name: str, *values: Any) -> tuple[Any, Any]:
        """TensorFlow 1's pair of a value and the op that adds a batch."""
        if self.kind in ("mean", "baseline"):
            mean, update = v1.metrics.mean(values[0], weights=values[1], name=name)
            if self.kind == "mean":
                return mean, update
            return tf.maximum(mean, 1.0 - mean), tf.maximum(update, 1.0 - update)
        labels, predictions, weights = values
        make: Callable[..., Any] = getattr(v1.metrics, self.kind.removesuffix("_pr"))
        if self.kind in ("auc", "auc_pr"):
            weights = broadcast(weights, predictions)
            curve = "PR" if self.kind == "auc_pr" else "ROC"
            value, update = make(labels, predictions, weights=weights, curve=curve, name=name)
            return value, update
        if self.threshold is not None:
            predictions = tf.cast(predictions >= self.threshold, tf.float32)
        value, update = make(labels, predictions, weights=weights, name=name)
        return value, update


class AccuracyBaseline(tf.keras.metrics.Mean):  # type: ignore[misc]
    """The accuracy of always predicting the more frequent of two classes."""

    def result(self) -> Any:
        return tf.math.divide_no_nan(tf.maximum(self.total, self.count - self.total), self.count)


def broadcast(weights: Any, values: Any) -> Any:
    """Weights in the shape of `values`."""
    return tf.cast(weights, values.dtype) * tf.ones_like(values)
