"""How one call's tensors are cut into micro-batches: device iterations, then accumulation, then replicas fastest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import AssertedError, StateError, refuse


@dataclass(frozen=True)
class Batching:
    """The three counts that multiply a micro-batch."""

    device_iterations: int = 1
    accumulation: int = 1
    replicas: int = 1

    @classmethod
    def of(cls, options: Any) -> Batching:
        """Reads the counts of a poptorch.Options and refuses those below one."""
        counts = {
            "Options.deviceIterations": options.device_iterations,
            "Options.Training.gradientAccumulation": options.Training.gradient_accumulation,
            "Options.replicationFactor": options.replication_factor,
        }
        for name, value in counts.items():
            if value < 1:
                raise refuse(f"{name} must be at least 1, not {value}.")
        return cls(*counts.values())

    @property
    def micro_batches(self) -> int:
        """How many micro-batches one call's input holds."""
        return self.device_iterations * self.accumulation * self.replicas

    def micro_batch_size(self, tensor: torch.Tensor, name: str) -> int:
        """The size of dim 0 that the model sees; a size that cannot be cut is refused."""
        size = tensor.shape[0] if tensor.dim() else 1
        if size % self.micro_batches:
            raise refuse(
                f"Invalid batch dimension: {name} of shape {list(tensor.shape)} has {size} in its first dimension, which "
                f"cannot be cut into Options.deviceIterations({self.device_iterations}) * "
                f"Options.replicationFactor({self.replicas}) * "
                f"Options.Training.gradientAccumulation({self.accumulation}) = {self.micro_batches} equal parts. "
                "Use poptorch.DataLoader, which multiplies batch_size by these, and drops an incomplete last batch.",
                AssertedError,
            )
        return size // self.micro_batches

    def first(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The micro-batch that a program is compiled for."""
        size = self.micro_batch_size(tensor, name)
        return tensor.narrow(0, 0, size) if tensor.dim() else tensor

    def micro_batch(self, tensor: torch.Tensor, run: int, replica: int) -> torch.Tensor:
        """The part of a call's tensor that `replica` reads in its `run`-th forward pass of this call."""
        if not tensor.dim():
            return tensor
        size = tensor.shape[0] // self.micro_batches
        return tensor.narrow(0, (run * self.replicas + replica) * size, size)


class Reduction:
    """Adds up gradients in `dtype`, the optimizer's accum_type, and divides when the strategy says."""

    def __init__(self, options: object, dtype: torch.dtype | None = None) -> None:
        training = options.Training  # type: ignore[attr-defined]
        mean = training.accumulation_and_replication_reduction_type == enums.ReductionType.Mean
        self._strategy = training.meanAccumulationAndReplicationReductionStrategy if mean else None
        self._accumulation: int = training.gradient_accumulation
        self._replicas: int = options.replication_factor  # type: ignore[attr-defined]
        # By what sums are divided in the end: those that were averaged on the way by the rest only, and plain sums not at all.
        divisors: dict[Any, int] = {
            enums.MeanReductionStrategy.Running: self._replicas,
            enums.MeanReductionStrategy.Post: self._accumulation * self._replicas,
            enums.MeanReductionStrategy.PostAndLoss: self._accumulation,
        }
        self._divisor = divisors.get(self._strategy, 1)
        self._dtype = dtype
        self._sums: list[dict[str, torch.Tensor]] = [{} for _ in range(self._replicas)]
        self._added = [0] * self._replicas

    def add(self, replica: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Takes the gradients of one micro-batch of one replica."""
        if self._strategy == enums.MeanReductionStrategy.PostAndLoss:
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
        if self._strategy == enums.MeanReductionStrategy.Running:
            return there * ((count - 1) / count) + gradient / count
        return there + gradient

    def result(self) -> dict[str, torch.Tensor]:
        """The gradient of each weight for one update; starts anew."""
        first, *others = self._sums
        reduced = dict(first)
        for sums in others:
            for name, value in sums.items():
                reduced[name] = reduced[name] + value
        if self._divisor != 1:
            reduced = {name: value / self._divisor for name, value in reduced.items()}
        self._sums = [{} for _ in range(self._replicas)]
        self._added = [0] * self._replicas
        return reduced


_ON_HOST = {torch.int64: torch.int32, torch.float64: torch.float32}  # IPUs have neither


def check_period(mode: int, period: int, batching: Batching, what: str = "Options.outputMode") -> None:
    """Refuses a period that PopART refuses: it must divide the device iterations."""
    if mode == enums.OutputMode.EveryN and batching.device_iterations % period:
        raise refuse(
            f"{what} returns every {period} batches, which does not divide Options.deviceIterations "
            f"({batching.device_iterations}): the position of the returned batch would differ from call to call."
        )


class Collector:
    """Takes one tensor's value after each forward pass, and gives what the output mode returns of them."""

    def __init__(self, mode: int, period: int, replicas: int, accumulation: int) -> None:
        self._mode = enums.OutputMode(mode)
        self._period = period * accumulation  # every N-th device iteration, with all of its micro-batches
        self._accumulation = accumulation
        self._replicas = replicas
        self._kept: list[torch.Tensor] = []  # All, EveryN: in the order of runs, replicas fastest
        self._last: dict[int, torch.Tensor] = {}  # Final, Sum: one a replica

    def add(self, run: int, replica: int, value: torch.Tensor) -> None:
        value = value.detach()
        value = value.to(_ON_HOST.get(value.dtype, value.dtype))
        if self._mode == enums.OutputMode.Sum:
            if value.dtype == torch.bool:
                raise refuse("OutputMode.Sum cannot add up a bool output. Return it as .int() or .float().")
            there = self._last.get(replica)
            self._last[replica] = value.clone() if there is None else there.add_(value)
        elif self._mode == enums.OutputMode.Final:
            self._last[replica] = value.clone()
        elif self._mode == enums.OutputMode.All or run % self._period >= self._period - self._accumulation:
            self._kept.append(value.clone())

    def result(self) -> torch.Tensor:
        """One tensor: values joined in their first dimension, and scalars as a vector where there are several."""
        values = self._kept or [self._last[replica] for replica in range(self._replicas)]
        if len(values) == 1:
            return values[0]
        return torch.cat([value.reshape(1) if not value.dim() else value for value in values])


_results: WeakIdKeyDictionary = WeakIdKeyDictionary()
_torch_backward = torch.Tensor.backward


def mark_results(tensors: Iterable[torch.Tensor]) -> None:
    """Has backward() on these tensors say why there is nothing to do; other tensors' backward() stays as it is."""
    if torch.Tensor.backward is _torch_backward:
        torch.Tensor.backward = _backward  # type: ignore[method-assign]
    for tensor in tensors:
        _results[tensor] = True


@functools.wraps(_torch_backward)
def _backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if self in _results:
        raise refuse(
            "backward() was called on a result of a PopTorch model. A trainingModel has run the backward pass and updated the "
            "weights by the time it returns; an inferenceModel has none. Leave backward() and optimizer.step() out."
        )
    try:
        return _torch_backward(self, *args, **kwargs)
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise refuse(
            "backward() was called on a tensor without a graph behind it. If it was computed from a result of a PopTorch model (a "
            "factor, a mean, GradScaler.scale()): a trainingModel has run the backward pass and updated the weights by the time it "
            "returns. Leave backward(), GradScaler and optimizer.step() out, and compute the loss inside of forward().",
            StateError,
        ) from error
