"""How gradients of micro-batches and replicas become the one gradient of a weight update."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from portwright.emulate.poptorch import _rounding, enums


class Reduction:
    """Adds up gradients in `dtype`, the optimizer's accum_type, and divides when the strategy says."""

    def __init__(self, options: object, dtype: torch.dtype | None = None) -> None:
        training = options.Training  # type: ignore[attr-defined]
        self._mean = training.accumulation_and_replication_reduction_type == enums.ReductionType.Mean
        self._strategy = training.meanAccumulationAndReplicationReductionStrategy
        self._accumulation: int = training.gradient_accumulation
        self._replicas: int = options.replication_factor  # type: ignore[attr-defined]
        self._dtype = dtype
        self._sums: list[dict[str, torch.Tensor]] = [{} for _ in range(self._replicas)]
        self._added = [0] * self._replicas

    def add(self, replica: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Takes the gradients of one micro-batch of one replica."""
        if self._mean and self._strategy == enums.MeanReductionStrategy.PostAndLoss:
            gradients = {name: gradient / self._replicas for name, gradient in gradients.items()}
        self._added[replica] += 1
        sums = self._sums[replica]
        for name, gradient in gradients.items():
            sums[name] = self._joined(sums.get(name), gradient, self._added[replica])

    def _joined(self, there: torch.Tensor | None, gradient: torch.Tensor, count: int) -> torch.Tensor:
        if self._accumulation == 1:
            return gradient  # PopART has no accumulator then, and so no other dtype
        if self._dtype is not None:
            gradient = gradient.to(self._dtype)
        if there is None:
            return gradient
        if there.dtype == torch.float16 and _rounding.is_stochastic():
            return self._joined_at_random(there, gradient, count)
        if self._mean and self._strategy == enums.MeanReductionStrategy.Running:
            return there * ((count - 1) / count) + gradient / count
        return there + gradient

    def _joined_at_random(self, there: torch.Tensor, gradient: torch.Tensor, count: int) -> torch.Tensor:
        total, added = there.float(), gradient.float()
        if self._mean and self._strategy == enums.MeanReductionStrategy.Running:
            total, added = total * ((count - 1) / count), added / count
        return _rounding.to(total + added, there.dtype)

    def result(self) -> dict[str, torch.Tensor]:
        """The gradient of each weight for one update; starts anew."""
        first, *others = self._sums
        reduced = dict(first)
        for sums in others:
            for name, value in sums.items():
                reduced[name] = reduced[name] + value
        divisor = self._divisor()
        if divisor != 1:
            reduced = {name: value / divisor for name, value in reduced.items()}
        self._sums = [{} for _ in range(self._replicas)]
        self._added = [0] * self._replicas
        return reduced

    def _divisor(self) -> int:
        if not self._mean:
            return 1
        if self._strategy == enums.MeanReductionStrategy.Running:
            return self._replicas
        if self._strategy == enums.MeanReductionStrategy.PostAndLoss:
            return self._accumulation
        return self._accumulation * self._replicas
