"""Share of predictions that are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from portwright.runtime.metrics.base import Metric, Sums
from portwright.runtime.metrics.batches import pair_up, spread


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
