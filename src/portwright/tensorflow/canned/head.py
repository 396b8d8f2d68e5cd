"""The interface of heads, which turn a model's logits into predictions, a loss, metrics and outputs to export."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.canned.head_inputs import call_loss_fn, check_logits, check_loss_fn, read_weights
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.spec import EstimatorSpec

v1 = tf.compat.v1

DEFAULT_KEY: str = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
V1_REDUCTIONS = tuple(v1.losses.Reduction.all())
REDUCTIONS = ("auto", "sum", "sum_over_batch_size")


MeasureKind = Literal["mean", "accuracy", "precision", "recall", "auc", "auc_pr", "baseline"]


class Head(abc.ABC):
    """The base class of heads for DNNEstimator, LinearEstimator and so on; a head of your own defines the abstract methods."""

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """Distinguishes this head's metrics and losses from those of other heads."""

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """How many logits an example has."""

    @property
    @abc.abstractmethod
    def loss_reduction(self) -> str:
        """How the losses of a batch become one number."""

    @abc.abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Any = None,
    ) -> Any:
        """The loss to train on."""

    @abc.abstractmethod
    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        """Predictions by name."""

    @abc.abstractmethod
    def metrics(self, regularization_losses: Any = None) -> dict[str, Any]:
        """New Keras metrics by name."""

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Any,
        logits: Any,
        labels: Any,
        mode: str | None = None,
        regularization_losses: Any = None,
    ) -> dict[str, Any]:
        """Adds a batch to the metrics that `metrics` made, and returns them."""

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        update_ops: Any = None,
        regularization_losses: Any = None,
    ) -> EstimatorSpec:
        """The EstimatorSpec for logits; to train it takes an optimizer with its variables, or `train_op_fn(loss)`."""
        with tf.name_scope(self.name or "head"):
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(
                    mode, predictions, export_outputs=self._export_outputs(logits, predictions)
                )
            loss = self.loss(labels, logits, features, mode, regularization_losses)
            if mode == ModeKeys.EVAL:
                metrics = self._metric_ops(features, logits, labels, regularization_losses)
                return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
            if mode != ModeKeys.TRAIN:
                raise BadValue(f"The mode is {mode!r}.", suggest(str(mode), ("train", "eval", "infer")))
            train_op = self._train_op(loss, optimizer, trainable_variables, train_op_fn, update_ops)
            more = self._more_summaries(features, logits, labels)
        with tf.name_scope(""):
            for key, value in {"loss": loss, **more}.items():
                v1.summary.scalar(self._summary_key(key), value)
            if regularization_losses is not None:
                v1.summary.scalar(self._summary_key("regularization_loss"), tf.add_n(regularization_losses))
        return EstimatorSpec(mode, predictions, loss, train_op)

    def _metric_ops(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Any
    ) -> dict[str, Any]:
        made = self.metrics(regularization_losses=regularization_losses)
        return self.update_metrics(
            made, features, logits, labels, regularization_losses=regularization_losses
        )

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        return None  # the predictions

    def _train_op(self, loss: Any, optimizer: Any, variables: Any, train_op_fn: Any, update_ops: Any) -> Any:
        # Keras's optimizers name their slots after this scope.
        with tf.name_scope(""), tf.name_scope("training"):
            return make_train_op(loss, optimizer, variables, train_op_fn, update_ops)

    def _more_summaries(self, features: Any, logits: Any, labels: Any) -> dict[str, Any]:
        return {}

    def _summary_key(self, name: str) -> str:
        return self._key(name)

    def _key(self, name: str) -> str:
        return f"{name}/{self.name}" if self.name else name


def make_train_op(
    loss: Any, optimizer: Any, variables: Any, train_op_fn: Callable[[Any], Any] | None, update_ops: Any
) -> Any:
    """The op of one step."""
    if (optimizer is None) == (train_op_fn is None):
        received = (
            "Neither optimizer nor train_op_fn was given."
            if optimizer is None
            else "Both were given: optimizer and train_op_fn."
        )
        raise BadValue(received, "Give one of them.")
    if update_ops is not None and not isinstance(update_ops, (list, tuple)):
        raise BadType(f"update_ops is a {type(update_ops).__name__}.", "Give a list of ops.")
    if train_op_fn is not None:
        train_op = train_op_fn(loss)
    elif isinstance(optimizer, v1.train.Optimizer):
        train_op = optimizer.minimize(loss, v1.train.get_global_step(), variables)
    elif isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        if not isinstance(variables, (list, tuple)):
            raise BadValue(f"trainable_variables is {variables!r}.", "Give the list of variables to train.")
        train_op = optimizer.get_updates(loss, variables)[0]
    else:
        raise BadType(
            f"The optimizer is a {type(optimizer).__name__}.", "Give one of tf.keras.optimizers.legacy."
        )
    return tf.group(train_op, *update_ops) if update_ops else train_op


def reduce_loss(unweighted: Any, weights: Any, reduction: str) -> Any:
    """One number from the weighted losses of a batch: their sum or, by default, their sum divided by the number of losses."""
    if reduction in V1_REDUCTIONS and reduction not in REDUCTIONS:
        return v1.losses.compute_weighted_loss(unweighted, weights, reduction=reduction)
    weighted = tf.multiply(unweighted, weights)
    total = tf.reduce_sum(weighted)
    if reduction == "sum":
        return total
    return tf.math.divide_no_nan(total, tf.cast(tf.size(weighted), weighted.dtype))


def check_reduction(reduction: str, valid: Sequence[str] = REDUCTIONS) -> None:
    """Refuses a reduction that does not give one number."""
    if reduction not in valid or reduction == "none":
        raise BadValue(
            f"loss_reduction is {reduction!r}.", suggest(str(reduction), [r for r in valid if r != "none"])
        )


def add_regularization(loss: Any, regularization_losses: Any) -> Any:
    """The loss plus the regularization losses."""
    return loss if not regularization_losses else loss + tf.add_n(regularization_losses)


def pick(predictions: dict[str, Callable[[], Any]], keys: Sequence[str] | None) -> dict[str, Any]:
    """Computes the predictions named in `keys`; all without `keys`."""
    for key in keys or ():
        if key not in predictions:
            raise BadValue(f"There is no prediction '{key}'.", suggest(str(key), predictions))
    return {key: make() for key, make in predictions.items() if not keys or key in keys}


@dataclass(frozen=True)
class Measure:
    """A metric to report; "mean" and "baseline" take (values, weights), the others (labels, predictions, weights)."""

    kind: MeasureKind
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

    def as_ops(self, name: str, *values: Any) -> Any:
        """TensorFlow 1's pair of a value and the op that adds a batch."""
        if self.kind in ("mean", "baseline"):
            pair = v1.metrics.mean(values[0], weights=values[1], name=name)
            return pair if self.kind == "mean" else tuple(tf.maximum(value, 1.0 - value) for value in pair)
        labels, predictions, weights = values
        if self.kind in ("auc", "auc_pr"):
            curve, weights = "PR" if self.kind == "auc_pr" else "ROC", broadcast(weights, predictions)
            return v1.metrics.auc(labels, predictions, weights=weights, curve=curve, name=name)
        if self.threshold is not None:
            predictions = tf.cast(predictions >= self.threshold, tf.float32)
        return getattr(v1.metrics, self.kind)(labels, predictions, weights=weights, name=name)


class AccuracyBaseline(tf.keras.metrics.Mean):  # type: ignore[misc]
    """The accuracy of always predicting the more frequent of two classes."""

    def result(self) -> Any:
        return tf.math.divide_no_nan(tf.maximum(self.total, self.count - self.total), self.count)


def broadcast(weights: Any, values: Any) -> Any:
    """Weights in the shape of `values`."""
    return tf.cast(weights, values.dtype) * tf.ones_like(values)


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
