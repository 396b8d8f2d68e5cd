"""Dice coefficient: overlap of predicted and labelled regions."""

from __future__ import annotations

from collections.abc import Sequence

from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.class_counts import ClassCountMetric, divide, mask_classes, mean_over_present


class DiceCoefficientMetric(ClassCountMetric):
    """Mean over classes of twice the overlap over the sum of both regions; classes that never occur, and `ignore_classes`, stay out of the mean."""

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

    def value(self, sums: Sums) -> float:
        both, predicted, actual = self.counts(sums)
        regions = predicted + actual
        dice = divide(2 * both, regions)
        mean = mean_over_present(dice, regions, self.mask)
        if mean is None:
            raise self.no_value("only ignored classes occurred")
        return mean
