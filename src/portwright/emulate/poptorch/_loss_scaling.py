"""Automatic loss scaling: PopART's rule, which keeps the gradients of a half model in the range of half.

After each update the factor of the loss doubles, or is halved where gradients have come near the largest half number. The
rule is that of PopART's public sources. What it counts is simplified: all half results of the backward pass but views, of which
PopART leaves out some more (slices, gathers, concatenations).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portwright.emulate.poptorch._impl import createPoptorchError

FACTOR = "lossScaleUpdateFactor"
"""What the loss scaling of the optimizer is multiplied by: a part of the device's optimizer state."""
FINAL = "finalLossScale"
"""The product of both, which anchorTensor() can ask for."""
_SETTINGS = "automaticLossScalingSettings."
ENABLED = f"{_SETTINGS}enabled"


class LossScaling:
    """Counts the gradients of one update, and says then how the factor goes on."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        largest = torch.finfo(torch.float16).max
        self._edge = largest * _proportion(settings, "binEdgeLocation", 0.125)
        self._threshold = _proportion(settings, "thresholdUpperCountProportion", 1e-7)
        self._period = int(settings.get(f"{_SETTINGS}updatePeriod", 1))
        if self._period < 1:
            raise createPoptorchError(
                f"PopART's setting '{_SETTINGS}updatePeriod' is {self._period}, and must be 1 or more."
            )
        self._num_updates = 0
        self._num_all = self._num_large = 0

    def observe(self, results: Any) -> None:
        """Takes what one op of the backward pass gave."""
        for tensor in results if isinstance(results, list | tuple) else (results,):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float16:
                self._num_all += tensor.numel()
                self._num_large += int((tensor.abs() > self._edge).sum())  # nan counts as small, as there

    def check(self) -> None:
        """Refuses a model without a half gradient before its first update, as PopART does when it compiles."""
        if not self._num_all:
            raise createPoptorchError(
                "Options.Training.setAutomaticLossScaling(True): no gradient of the model is half, so that PopART finds none to "
                "watch. Leave it out, float32 needs no loss scaling; or make the model half: model.half()."
            )

    def update(self, factor: Tensor) -> None:
        """Doubles or halves the factor, and starts counting anew."""
        if self._num_updates % self._period == 0:
            factor.mul_(0.5 if self._num_large > self._threshold * self._num_all else 2.0)
        self._num_updates += 1
        self._num_all = self._num_large = 0


def is_automatic(options: Any) -> bool:
    """Whether the options ask for it."""
    return bool(options._Popart.options.get(ENABLED, False))


def check_trains(options: Any, training: bool) -> None:
    """Refuses it for an inference model, as PopART does."""
    if is_automatic(options) and not training:
        raise createPoptorchError(
            "Options.Training.setAutomaticLossScaling(True) is only for training, and PopART compiles no inferenceModel "
            "with it. Give the inferenceModel options of its own."
        )


def _proportion(settings: Mapping[str, Any], name: str, default: float) -> float:
    value = float(settings.get(f"{_SETTINGS}{name}", default))
    if not 0 <= value <= 1:
        raise createPoptorchError(
            f"PopART's setting '{_SETTINGS}{name}' is {value}, and must be from 0 to 1."
        )
    return value
