"""Per-class counts: all that F-beta, MCC, dice and mean IOU need of a confusion matrix.

Three vectors instead of the matrix, so that fifty thousand classes cost a megabyte and not twenty gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.metrics.base import Metric, Sums
from portwright.runtime.metrics.batches import SUM_DTYPE, pair_up, spread


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
        # What does not count goes to class 0 with weight 0: dropping it would need its number on the host.
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


def mean_over_present(score: Tensor, denominator: Tensor, mask: Tensor) -> float | None:
    """Mean score of the classes that occur at all, as labels or as predictions; None when none does."""
    present = mask & (denominator != 0)
    return float(score[present].mean()) if present.any() else None
