"""Which results of the micro-batches come back to the host, in which shape: poptorch.OutputMode."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._batching import Batching
from portwright.emulate.poptorch._errors import StateError, refuse

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
