"""Heads that predict numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import PredictOutput, RegressionOutput

from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.canned.head import DEFAULT_KEY
from portwright.tensorflow.canned.head_inputs import check_logits, check_range, match_labels
from portwright.tensorflow.canned.measures import Measure, broadcast
from portwright.tensorflow.canned.single_head import SingleHead

v1 = tf.compat.v1


class RegressionHead(SingleHead):
    """Predicts numbers, with mean squared error or `loss_fn`; `inverse_link_fn` turns logits into predictions."""

    _per_logit_weights = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        inverse_link_fn: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        if label_dimension < 1:
            raise BadValue(f"label_dimension is {label_dimension}.", "Give 1 or more.")
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._loss_dimension = label_dimension
        self._inverse_link_fn = inverse_link_fn

    @property
    def logits_dimension(self) -> int:
        return self._loss_dimension

    def predictions(self, logits: Any) -> dict[Any, Any]:  # type: ignore[override]  # the real one takes no keys either
        logits = check_logits(logits, self.logits_dimension)
        if self._inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self._inverse_link_fn(logits), "logits": logits}

    def _targets(self, labels: Any, logits: Any) -> Any:
        return tf.cast(match_labels(labels, logits, self.logits_dimension), tf.float32)

    def _loss_of_each(self, targets: Any, logits: Any) -> Any:
        return tf.math.squared_difference(logits, targets)

    def _measures(self) -> dict[str, Measure]:
        return dict.fromkeys(("average_loss", "prediction/mean", "label/mean"), Measure("mean"))

    def _values(self, targets: Any, logits: Any, weights: Any) -> dict[str, tuple[Any, ...]]:
        predicted = self.predictions(logits)["predictions"]
        return {
            "prediction/mean": (predicted, broadcast(weights, predicted)),
            "label/mean": (targets, broadcast(weights, targets)),
        }

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        value = RegressionOutput(predictions["predictions"])
        return {DEFAULT_KEY: value, "regression": value, "predict": PredictOutput(predictions)}


class PoissonRegressionHead(RegressionHead):
    """Counts: the logits are the logarithm of their mean."""

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        def poisson(labels: Any, logits: Any) -> Any:
            return tf.nn.log_poisson_loss(labels, logits, compute_full_loss=compute_full_loss)

        super().__init__(label_dimension, weight_column, loss_reduction, poisson, tf.exp, name)


class LogisticRegressionHead(RegressionHead):
    """Numbers in [0, 1]: the logits are their log odds."""

    def __init__(
        self, weight_column: Any = None, loss_reduction: str = "sum_over_batch_size", name: str | None = None
    ) -> None:
        def logistic(labels: Any, logits: Any) -> Any:
            return tf.nn.sigmoid_cross_entropy_with_logits(labels=check_range(labels, 2), logits=logits)

        super().__init__(1, weight_column, loss_reduction, logistic, tf.sigmoid, name)
