"""Heads with one loss: those that predict classes, and those that predict numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
)

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.canned.head import DEFAULT_KEY, Measure, SingleHead, broadcast, pick
from portwright.tensorflow.canned.head_inputs import (
    all_class_ids,
    all_classes,
    check_logits,
    check_range,
    class_ids_of,
    classes_of,
    match_labels,
)

v1 = tf.compat.v1


class _ClassHead(SingleHead):
    """The common part of heads that predict classes."""

    def __init__(
        self,
        n_classes: int,
        weight_column: Any,
        label_vocabulary: Any,
        loss_reduction: str,
        loss_fn: Callable[..., Any] | None,
        name: str | None,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._n_classes = n_classes
        self._vocabulary = check_vocabulary(label_vocabulary, n_classes)
        self._thresholds = check_thresholds(thresholds)

    @property
    def logits_dimension(self) -> int:
        return self._n_classes

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        names = all_classes(logits, self._n_classes, self._vocabulary)
        classes = ClassificationOutput(predictions["probabilities"], names)
        return {DEFAULT_KEY: classes, "classification": classes, "predict": PredictOutput(predictions)}


class BinaryClassHead(_ClassHead):
    """Two classes from one logit; `thresholds` adds accuracy, precision and recall at each."""

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(2, weight_column, label_vocabulary, loss_reduction, loss_fn, name, thresholds)

    @property
    def logits_dimension(self) -> int:
        return 1

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        logits = check_logits(logits, 1)
        both = tf.concat((tf.zeros_like(logits), logits), axis=-1, name="two_class_logits")
        class_ids = tf.expand_dims(tf.argmax(both, axis=-1), -1)
        return pick(
            {
                "logits": lambda: logits,
                "logistic": lambda: tf.sigmoid(logits),
                "probabilities": lambda: tf.nn.softmax(both),
                "class_ids": lambda: class_ids,
                "classes": lambda: classes_of(class_ids, self._vocabulary),
                "all_class_ids": lambda: all_class_ids(logits, 2),
                "all_classes": lambda: all_classes(logits, 2, self._vocabulary),
            },
            keys,
        )

    def _targets(self, labels: Any, logits: Any) -> Any:
        labels = match_labels(labels, logits, 1)
        ids = class_ids_of(labels, self._vocabulary) if self._vocabulary else labels
        return check_range(tf.cast(ids, tf.float32), 2)

    def _loss_of_each(self, targets: Any, logits: Any) -> Any:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)

    def _measures(self) -> dict[str, Measure]:
        return {
            "average_loss": Measure("mean"),
            "accuracy": Measure("accuracy"),
            "precision": Measure("precision"),
            "recall": Measure("recall"),
            "prediction/mean": Measure("mean"),
            "label/mean": Measure("mean"),
            "accuracy_baseline": Measure("baseline"),
            "auc": Measure("auc"),
            "auc_precision_recall": Measure("auc_pr"),
            **threshold_measures(self._thresholds),
        }

    def _values(self, targets: Any, logits: Any, weights: Any) -> dict[str, tuple[Any, ...]]:
        found = self.predictions(logits, ["class_ids", "logistic"])
        class_ids, logistic = found["class_ids"], found["logistic"]
        by_class, by_chance = (targets, class_ids, weights), (targets, logistic, broadcast(weights, logistic))
        return {
            "accuracy": by_class,
            "precision": by_class,
            "recall": by_class,
            "prediction/mean": (logistic, broadcast(weights, logistic)),
            "label/mean": (targets, broadcast(weights, targets)),
            "accuracy_baseline": (targets, broadcast(weights, targets)),
            "auc": by_chance,
            "auc_precision_recall": by_chance,
            **dict.fromkeys(threshold_measures(self._thresholds), by_chance),
        }

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        regression = RegressionOutput(predictions["logistic"])
        return {**super()._export_outputs(logits, predictions), "regression": regression}


class MultiClassHead(_ClassHead):
    """One of three or more classes, by softmax."""

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None or n_classes <= 2:
            raise BadValue(f"n_classes is {n_classes}.", "Give 3 or more; BinaryClassHead is for 2.")
        super().__init__(n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name)

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        logits = check_logits(logits, self._n_classes)
        class_ids = tf.expand_dims(tf.argmax(logits, axis=-1), -1)
        return pick(
            {
                "logits": lambda: logits,
                "probabilities": lambda: tf.nn.softmax(logits),
                "class_ids": lambda: class_ids,
                "classes": lambda: classes_of(class_ids, self._vocabulary),
                "all_class_ids": lambda: all_class_ids(logits, self._n_classes),
                "all_classes": lambda: all_classes(logits, self._n_classes, self._vocabulary),
            },
            keys,
        )

    def _targets(self, labels: Any, logits: Any) -> Any:
        labels = match_labels(labels, logits, 1)
        if self._vocabulary:
            if labels.dtype != tf.string:
                raise BadValue(
                    f"The labels are {labels.dtype.name}.", "With label_vocabulary they are strings."
                )
            return check_range(class_ids_of(labels, self._vocabulary), self._n_classes)
        if not labels.dtype.is_integer:
            raise BadValue(
                f"The labels are {labels.dtype.name}.", "Give integers, or strings with label_vocabulary."
            )
        return check_range(labels, self._n_classes)

    def _loss_of_each(self, targets: Any, logits: Any) -> Any:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.squeeze(targets, -1), logits=logits)
        return tf.expand_dims(each, -1)

    def _measures(self) -> dict[str, Measure]:
        return {"average_loss": Measure("mean"), "accuracy": Measure("accuracy")}

    def _values(self, targets: Any, logits: Any, weights: Any) -> dict[str, tuple[Any, ...]]:
        return {"accuracy": (targets, self.predictions(logits, ["class_ids"])["class_ids"], weights)}


class MultiLabelHead(_ClassHead):
    """Each class is true or not, by a sigmoid; labels are rows of 0 and 1, or a SparseTensor of classes."""

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Any = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Any] | None = None,
        classes_for_class_based_metrics: Any = None,
        name: str | None = None,
    ) -> None:
        if n_classes is None or n_classes < 2:
            raise BadValue(f"n_classes is {n_classes}.", "Give 2 or more.")
        super().__init__(
            n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name, thresholds
        )
        self._measured = {self._class_number(given): "" for given in classes_for_class_based_metrics or ()}
        for number in self._measured:
            self._measured[number] = self._vocabulary[number] if self._vocabulary else f"class{number}"

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, Any]:
        logits = check_logits(logits, self._n_classes)
        return pick(
            {
                "logits": lambda: logits,
                "probabilities": lambda: tf.sigmoid(logits),
                "classes": lambda: all_classes(logits, self._n_classes, self._vocabulary),
            },
            keys,
        )

    def _class_number(self, given: Any) -> int:
        if isinstance(given, str):
            if given not in self._vocabulary:
                raise BadValue(
                    f"classes_for_class_based_metrics names '{given}'.", suggest(given, self._vocabulary)
                )
            return self._vocabulary.index(given)
        if not 0 <= given < self._n_classes:
            raise BadValue(
                f"classes_for_class_based_metrics has {given}.", f"Give 0 to {self._n_classes - 1}."
            )
        return int(given)

    def _targets(self, labels: Any, logits: Any) -> Any:
        if isinstance(labels, (tf.SparseTensor, v1.SparseTensorValue)):
            labels = tf.cast(self._indicators(tf.SparseTensor.from_value(labels)), tf.int64)
        elif labels is not None:
            labels = check_range(labels, 2)
        return match_labels(labels, logits, self._n_classes)

    def _indicators(self, labels: Any) -> Any:
        values = labels.values
        if values.dtype == tf.string:
            values = class_ids_of(values, self._vocabulary)
        elif not values.dtype.is_integer:
            raise BadValue(
                f"The labels are {values.dtype.name}.", "Give integers, or strings with label_vocabulary."
            )
        values = check_range(values, self._n_classes)
        return tf.sparse.to_indicator(
            tf.SparseTensor(labels.indices, values, labels.dense_shape), self._n_classes
        )

    def _loss_of_each(self, targets: Any, logits: Any) -> Any:
        targets = tf.cast(targets, logits.dtype)
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
        return tf.reduce_mean(each, axis=-1, keepdims=True)

    def _measures(self) -> dict[str, Measure]:
        measures = {
            "average_loss": Measure("mean"),
            "auc": Measure("auc"),
            "auc_precision_recall": Measure("auc_pr"),
        }
        measures |= threshold_measures(self._thresholds)
        for name in self._measured.values():
            measures[f"probability_mean/{name}"] = Measure("mean")
            measures[f"auc/{name}"] = Measure("auc")
            measures[f"auc_precision_recall/{name}"] = Measure("auc_pr")
        return measures

    def _values(self, targets: Any, logits: Any, weights: Any) -> dict[str, tuple[Any, ...]]:
        probabilities = tf.sigmoid(logits)
        by_chance = (targets, probabilities, weights)
        values: dict[str, tuple[Any, ...]] = {
            "auc": by_chance,
            "auc_precision_recall": by_chance,
            **dict.fromkeys(threshold_measures(self._thresholds), by_chance),
        }
        for number, name in self._measured.items():
            of_class = probabilities[..., number : number + 1]
            values[f"probability_mean/{name}"] = (of_class, broadcast(weights, of_class))
            for kind in ("auc", "auc_precision_recall"):
                values[f"{kind}/{name}"] = (targets[..., number : number + 1], of_class, weights)
        return values


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


def check_vocabulary(vocabulary: Any, n_classes: int) -> tuple[str, ...]:
    """The names of the classes, checked; empty if the labels are numbers."""
    if vocabulary is None:
        return ()
    if not isinstance(vocabulary, (list, tuple)):
        raise BadType(
            f"label_vocabulary is a {type(vocabulary).__name__}.", "Give a list of the classes' names."
        )
    if len(vocabulary) != n_classes:
        raise BadValue(
            f"label_vocabulary has {len(vocabulary)} names, for {n_classes} classes.",
            "Give one name a class.",
        )
    return tuple(vocabulary)


def check_thresholds(thresholds: Sequence[float] | None) -> tuple[float, ...]:
    """The thresholds, checked to lie between 0 and 1."""
    for threshold in thresholds or ():
        if not 0.0 < threshold < 1.0:
            raise BadValue(f"A threshold is {threshold}.", "Give numbers between 0 and 1, without these.")
    return tuple(thresholds or ())


def threshold_measures(thresholds: Sequence[float]) -> dict[str, Measure]:
    """Accuracy, precision and recall at each threshold."""
    return {
        f"{kind}/positive_threshold_{threshold:g}": Measure(kind, threshold)
        for threshold in thresholds
        for kind in ("accuracy", "precision", "recall")
    }
