"""F-beta: precision and recall in one number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from portwright.errors import UserError, suggest
from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.class_counts import ClassCountMetric, divide, mask_classes

AVERAGE_TYPES = ("micro", "macro", "binary")


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
