"""Matthews' correlation coefficient."""

from __future__ import annotations

import math
from fractions import Fraction

from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.class_counts import ClassCountMetric


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
