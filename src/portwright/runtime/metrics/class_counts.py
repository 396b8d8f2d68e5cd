"""Per-class counts: all that F-beta, MCC, dice and mean IOU need of a confusion matrix.

Three vectors instead of the matrix, so that fifty thousand classes cost a megabyte and not twenty gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError, suggest
from portwright.runtime.metrics.base import SUM_DTYPE, Metric, Sums, pair_up, spread

AVERAGE_TYPES = ("micro", "macro", "binary")


class ClassCountMetric(Metric):
    """A metric of how often each class was meant, predicted, and both.

    Labels below zero or equal to `ignore_index` are padding and do not count. Any other value outside
    0..num_classes-1 is an error, which `compute` raises: `update` cannot know without waiting for the device.
    """

    def __init__(self, num_classes: int, name: str | None = None, *, ignore_index: int | None = None) -> None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise UserError(
                f"num_classes must be a whole number of at least 2, received {num_classes!r}.",
                "Two classes stand for yes and no.",
            )
        super().__init__(name)
        self.num_classes = num_classes
        self.ignore_index = ignore_index

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        per_class = (self.num_classes,)
        return {"both": per_class, "predicted": per_class, "actual": per_class, "invalid": ()}

    def update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        shaped_label, shaped_prediction = pair_up(self.name, labels, predictions)
        weight = spread(self.name, weights, shaped_label).flatten()
        label, prediction = shaped_label.flatten(), shaped_prediction.flatten()
        is_padding = label < 0
        if self.ignore_index is not None:
            is_padding = is_padding | (label == self.ignore_index)
        is_valid = self._is_class(label) & self._is_class(prediction)
        counts = is_valid & ~is_padding
        # Ignored labels go to class 0 with weight 0: to drop them, the host would have to wait for their number.
        weight = torch.where(counts, weight, 0.0)
        label = torch.where(counts, label, 0).long()
        prediction = torch.where(counts, prediction, 0).long()
        self.add(
            both=self._count(label, torch.where(label == prediction, weight, 0.0)),
            predicted=self._count(prediction, weight),
            actual=self._count(label, weight),
            invalid=(~(is_padding | is_valid)).sum(),
        )

    def counts(self, sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
        """Per class: weight of hits, of predictions, of labels."""
        if (num_invalid := int(sums["invalid"])) > 0:
            raise UserError(
                f"Metric '{self.name}' received {num_invalid} labels or predictions that are no class of "
                f"0..{self.num_classes - 1}.",
                "Check num_classes, pass class numbers and not probabilities, and mark padding with ignore_index "
                "or a label below 0.",
            )
        if float(sums["actual"].sum()) == 0:
            raise self.no_value("it saw no label that counts")
        return sums["both"], sums["predicted"], sums["actual"]

    def _is_class(self, values: Tensor) -> Tensor:
        in_range = (values >= 0) & (values < self.num_classes)
        return in_range & (values == values.trunc()) if values.is_floating_point() else in_range

    def _count(self, classes: Tensor, weight: Tensor) -> Tensor:
        zeros = torch.zeros(self.num_classes, dtype=SUM_DTYPE, device=classes.device)
        return zeros.index_add_(0, classes, weight)


def mask_classes(num_classes: int, ignored: Sequence[int] | None) -> Tensor:
    """True for the classes that enter a mean; on the host, wherever the model is being made."""
    chosen = [True] * num_classes
    for class_index in ignored or ():
        if (
            isinstance(class_index, bool)
            or not isinstance(class_index, int)
            or not 0 <= class_index < num_classes
        ):
            raise UserError(
                f"Class {class_index!r} is to be ignored, but classes are 0..{num_classes - 1}.",
                "Name only classes that exist.",
            )
        chosen[class_index] = False
    if not any(chosen):
        raise UserError(f"All {num_classes} classes are to be ignored.", "Leave at least one to report on.")
    return torch.tensor(chosen, device="cpu")


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Element-wise quotient that is 0 where the denominator is 0."""
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))


class _MeanOverClasses(ClassCountMetric):
    """Mean of a score over the classes that occur; `ignore_classes` stay out of it."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        *,
        ignore_classes: Sequence[int] | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(num_classes, name, ignore_index=ignore_index)
        self.mask = mask_classes(num_classes, ignore_classes)

    def score(self, both: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and denominator of each class, from the overlap and the sum of both regions."""
        raise NotImplementedError

    def value(self, sums: Sums) -> float:
        both, predicted, actual = self.counts(sums)
        numerator, denominator = self.score(both, predicted + actual)
        present = self.mask & (denominator != 0)
        if not present.any():
            raise self.no_value("only ignored classes occurred")
        return float(divide(numerator, denominator)[present].mean())


class DiceCoefficientMetric(_MeanOverClasses):
    """Mean over classes of twice the overlap over the sum of both regions; classes that never occur, and `ignore_classes`, stay out of the mean."""

    def score(self, both: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * both, regions


class MeanIOUMetric(_MeanOverClasses):
    """Mean over classes of the overlap of prediction and label over their union; classes that never occur, and `ignore_classes`, stay out of the mean."""

    def score(self, both: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        return both, regions - both


class FBetaScoreMetric(ClassCountMetric):
    """F-beta over the classes that are not in `ignore_labels`.

    `micro` pools all classes, `macro` is the mean of the classes' scores (0 for one that never occurs), `binary` is
    the score of class 1 of two.
    """

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
        *,
        ignore_index: int | None = None,
    ) -> None:
        if not (isinstance(beta, (int, float)) and math.isfinite(beta) and beta > 0):
            raise UserError(
                f"beta must be above 0, received {beta!r}.", "1 weighs precision and recall alike."
            )
        if average_type not in AVERAGE_TYPES:
            raise UserError(
                f"average_type must be known, received {average_type!r}.",
                suggest(str(average_type), AVERAGE_TYPES),
            )
        if average_type == "binary" and (num_classes != 2 or ignore_labels):
            raise UserError(
                f"average_type 'binary' reports class 1 of two, received num_classes={num_classes} and "
                f"ignore_labels={ignore_labels}.",
                "Use 'micro' or 'macro'.",
            )
        super().__init__(num_classes, name, ignore_index=ignore_index)
        self.beta = float(beta)
        self.average_type = average_type
        self.mask = mask_classes(num_classes, [0] if average_type == "binary" else ignore_labels)

    def value(self, sums: Sums) -> float:
        both, predicted, actual = (count[self.mask] for count in self.counts(sums))
        if self.average_type == "micro":
            both, predicted, actual = both.sum(), predicted.sum(), actual.sum()
        return float(self._score(both, predicted, actual).mean())

    def _score(self, both: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        beta2 = self.beta**2
        return divide((1 + beta2) * both, beta2 * actual + predicted)


class MatthewsCorrelationCoefficientMetric(ClassCountMetric):
    """Correlation of labels and predictions, for two classes or more; 0 when either is constant."""

    def __init__(
        self, num_classes: int = 2, name: str | None = None, *, ignore_index: int | None = None
    ) -> None:
        super().__init__(num_classes, name, ignore_index=ignore_index)

    def value(self, sums: Sums) -> float:
        # Covariances are small differences of products that exceed 2**53 from 1e8 samples on: so, exact fractions.
        both, predicted, actual = ([Fraction(x) for x in counts.tolist()] for counts in self.counts(sums))
        total = sum(actual)
        covariance = total * sum(both) - sum(p * a for p, a in zip(predicted, actual, strict=True))
        predicted_variance = total**2 - sum(p * p for p in predicted)
        actual_variance = total**2 - sum(a * a for a in actual)
        if predicted_variance == 0 or actual_variance == 0:
            return 0.0
        return float(covariance) / (math.sqrt(predicted_variance) * math.sqrt(actual_variance))


class AccuracyMetric(Metric):
    """Top-1 accuracy: the weight of right predictions over the weight of all; labels of `ignore_index` do not count."""

    def __init__(self, name: str | None = None, *, ignore_index: int | None = None) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"correct": (), "total": ()}

    def update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        label, prediction = pair_up(self.name, labels, predictions)
        weight = spread(self.name, weights, label)
        if self.ignore_index is not None:
            weight = torch.where(label == self.ignore_index, 0.0, weight)
        self.add(correct=torch.where(label == prediction, weight, 0.0).sum(), total=weight.sum())

    def value(self, sums: Sums) -> float:
        total = float(sums["total"])
        if total == 0:
            raise self.no_value("the weights of all its labels were zero")
        return float(sums["correct"]) / total
