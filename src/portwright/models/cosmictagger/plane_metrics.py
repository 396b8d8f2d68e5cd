"""How well pixels are told apart: accuracies, and intersections over unions, each an average over planes of events."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from portwright.runtime.metrics import Metric

BACKGROUND, COSMIC, NEUTRINO = 0, 1, 2
NAMES = ("accuracy", "non_background_accuracy", "cosmic_iou", "neutrino_iou", "mean_iou")


def score_planes(labels: Tensor, predictions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each metric its value for every plane of every event ([planes * batch]), and 1 where it has one.

    A plane where a class is neither labelled nor predicted counts as 1, as in the original. Where nothing but background
    is labelled there is no accuracy of the rest; the original divides by zero there.
    """
    right = (labels == predictions).float()
    is_signal = (labels != BACKGROUND).float()
    num_signal = is_signal.sum((1, 2))
    ones = torch.ones_like(num_signal)
    cosmic, neutrino = (_intersection_over_union(labels == c, predictions == c) for c in (COSMIC, NEUTRINO))
    return {
        "accuracy": (right.mean((1, 2)), ones),
        "non_background_accuracy": (
            (right * is_signal).sum((1, 2)) / num_signal.clamp(min=1.0),
            (num_signal > 0).float(),
        ),
        "cosmic_iou": (cosmic, ones),
        "neutrino_iou": (neutrino, ones),
        "mean_iou": ((cosmic + neutrino) / 2, ones),
    }


def _intersection_over_union(labelled: Tensor, predicted: Tensor) -> Tensor:
    intersection = (labelled & predicted).float().sum((1, 2))
    union = (labelled | predicted).float().sum((1, 2))
    return torch.where(union > 0, intersection / union.clamp(min=1.0), torch.ones_like(union))


class PlaneMetric(Metric):
    """One of NAMES over an evaluation, called with labels and predictions of shape [planes * batch, height, width]."""

    def __init__(self, which: str) -> None:
        super().__init__(f"eval/{which}")
        self.which = which

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"total": (), "count": ()}

    def update(self, labels: Tensor, predictions: Tensor) -> None:
        values, counts = score_planes(labels, predictions)[self.which]
        self.add(total=(values * counts).sum(), count=counts.sum())

    def value(self, sums: Mapping[str, Tensor]) -> float:
        if float(sums["count"]) == 0:
            raise self.no_value("no event had a pixel that is not background")
        return float(sums["total"]) / float(sums["count"])
