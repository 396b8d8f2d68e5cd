"""A head for examples of which several classes may be true at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import ClassificationOutput, PredictOutput

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.canned.class_heads import check_thresholds, check_vocabulary, threshold_measures
from portwright.tensorflow.canned.head import DEFAULT_KEY, pick
from portwright.tensorflow.canned.head_inputs import (
    all_classes,
    check_logits,
    check_range,
    class_ids_of,
    match_labels,
)
from portwright.tensorflow.canned.measures import Measure, broadcast
from portwright.tensorflow.canned.single_head import SingleHead

v1 = tf.compat.v1


class MultiLabelHead(SingleHead):
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
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        self._n_classes = n_classes
        self._thresholds = check_thresholds(thresholds)
        self._vocabulary = check_vocabulary(label_vocabulary, n_classes)
        self._measured = {self._class_number(given): "" for given in classes_for_class_based_metrics or ()}
        for number in self._measured:
            self._measured[number] = self._vocabulary[number] if self._vocabulary else f"class{number}"

    @property
    def logits_dimension(self) -> int:
        return self._n_classes

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

    def _export_outputs(self, logits: Any, predictions: Any) -> Any:
        names = all_classes(logits, self._n_classes, self._vocabulary)
        classes = ClassificationOutput(predictions["probabilities"], names)
        return {DEFAULT_KEY: classes, "classification": classes, "predict": PredictOutput(predictions)}
