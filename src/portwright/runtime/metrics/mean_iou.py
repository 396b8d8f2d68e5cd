"""Mean intersection over union."""

from __future__ import annotations

from collections.abc import Sequence

from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.class_counts import ClassCountMetric, divide, mask_classes, mean_over_present


class MeanIOUMetric(ClassCountMetric):
    """Mean over classes of the overlap of prediction and label over their union; classes that never occur, and `ignore_classes`, stay out of the mean."""

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
        union = predicted + actual - both
        mean = mean_over_present(divide(both, union), union, self.mask)
        if mean is None:
            raise self.no_value("only ignored classes occurred")
        return mean
