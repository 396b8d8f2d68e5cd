"""Heads that predict one of two or of many classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
)

from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.canned.head import DEFAULT_KEY, pick
from portwright.tensorflow.canned.head_inputs import (
    all_class_ids,
    all_classes,
    check_logits,
    check_range,
    class_ids_of,
    classes_of,
    match_labels,
)
from portwright.tensorflow.canned.measures import Measure, broadcast
from portwright.tensorflow.canned.single_head import SingleHead

v1 = tf.compat.v1


class BinaryClassHead(SingleHead):
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
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._vocabulary = check_vocabulary(label_vocabulary, 2)
        self._thresholds = check_thresholds(thresholds)

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
        probabilities = predictions["probabilities"]
        classes = ClassificationOutput(probabilities, all_classes(logits, 2, self._vocabulary))
        return {
            DEFAULT_KEY: classes,
            "classification": classes,
            "regression": RegressionOutput(predictions["logistic"]),
            "predict": PredictOutput(predictions),
        }


class MultiClassHead(SingleHead):
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
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._n_classes = n_classes
        self._vocabulary = check_vocabulary(label_vocabulary, n_classes)

    @property
    def logits_dimension(self) -> int:
        return self._n_classes

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

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        names = all_classes(logits, self._n_classes, self._vocabulary)
        classes = ClassificationOutput(predictions["probabilities"], names)
        return {DEFAULT_KEY: classes, "classification": classes, "predict": PredictOutput(predictions)}


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
