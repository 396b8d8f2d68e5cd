"""The common part of heads with one loss: weights, reduction and metrics."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.tensorflow.canned.head import Head, add_regularization, check_reduction, reduce_loss
from portwright.tensorflow.canned.head_inputs import call_loss_fn, check_logits, check_loss_fn, read_weights
from portwright.tensorflow.canned.measures import Measure

v1 = tf.compat.v1


class SingleHead(Head):
    """A head with one loss; subclasses say what the labels are, the loss of each example, and what to measure."""

    _per_logit_weights = False
    _loss_dimension = 1

    def __init__(
        self, weight_column: Any, loss_reduction: str, loss_fn: Callable[..., Any] | None, name: str | None
    ) -> None:
        self._check_reduction(loss_reduction)
        check_loss_fn(loss_fn)
        self._weight_column = weight_column
        self._loss_reduction = loss_reduction
        self._loss_fn = loss_fn
        self._name = name

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def loss_reduction(self) -> str:
        return self._loss_reduction

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Any = None,
    ) -> Any:
        logits = check_logits(logits, self.logits_dimension)
        unweighted, weights = self._losses(self._targets(labels, logits), logits, features)
        return add_regularization(
            reduce_loss(unweighted, weights, self._loss_reduction), regularization_losses
        )

    def metrics(self, regularization_losses: Any = None) -> dict[str, Any]:
        made = {self._key(key): measure.as_keras(key) for key, measure in self._measures().items()}
        if regularization_losses is not None:
            made[self._key("regularization_loss")] = Measure("mean").as_keras("regularization_loss")
        return made

    def update_metrics(  # type: ignore[override]  # the real heads take no mode either
        self,
        eval_metrics: dict[str, Any],
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Any = None,
    ) -> dict[str, Any]:
        for key, values in self._observe(features, logits, labels, regularization_losses).items():
            *observed, weights = values
            eval_metrics[self._key(key)].update_state(*observed, sample_weight=weights)
        return eval_metrics

    def _check_reduction(self, reduction: str) -> None:
        check_reduction(reduction)

    def _losses(self, targets: Any, logits: Any, features: Any) -> tuple[Any, Any]:
        if self._loss_fn is None:
            unweighted = self._loss_of_each(targets, logits)
        else:
            unweighted = call_loss_fn(self._loss_fn, targets, logits, features, self._loss_dimension)
        return unweighted, read_weights(features, self._weight_column, logits, self._per_logit_weights)

    def _observe(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Any
    ) -> dict[str, tuple[Any, ...]]:
        """The inputs of each measure by name: (values, weights) or (labels, predictions, weights)."""
        logits = check_logits(logits, self.logits_dimension)
        targets = self._targets(labels, logits)
        unweighted, weights = self._losses(targets, logits, features)
        observed = {"average_loss": (unweighted, weights), **self._values(targets, logits, weights)}
        if regularization_losses is not None:
            observed["regularization_loss"] = (tf.add_n(regularization_losses), None)
        return observed

    @abc.abstractmethod
    def _targets(self, labels: Any, logits: Any) -> Any:
        """Labels in the form that the loss takes."""

    @abc.abstractmethod
    def _loss_of_each(self, targets: Any, logits: Any) -> Any:
        """The loss of each example, of shape [..., 1] or [..., logits]."""

    @abc.abstractmethod
    def _measures(self) -> dict[str, Measure]:
        """The metrics to report by name, with `average_loss`."""

    @abc.abstractmethod
    def _values(self, targets: Any, logits: Any, weights: Any) -> dict[str, tuple[Any, ...]]:
        """The inputs of each metric of `_measures`, by name, without `average_loss`."""
