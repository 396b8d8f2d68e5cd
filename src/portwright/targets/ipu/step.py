"""The module that PopTorch wraps: the user's model on flat tensors, its loss marked, its metrics' inputs among the outputs.

PopTorch runs Python once, to trace; what the host must do at every call is kept here beside the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from portwright.errors import UnsupportedError
from portwright.runtime.base_model import LossModule, split_loss
from portwright.runtime.batches import map_tensors, name_outputs, walk_tensors
from portwright.runtime.metrics.base import Metric

Phase = Literal["train", "eval", "predict"]
PREFIX = "net."  # of the weights' names in the wrapped module


class Traced:
    """What a trace leaves on the host: which outputs there are, and which metrics they belong to."""

    def __init__(self) -> None:
        self.num_axes: list[int] = []  # of each output, of one batch
        self.names: list[str] = []  # predict: of each output
        self.metric_calls: list[tuple[Metric, Any]] = []  # eval: with (arguments, named arguments)

    def split(self, outputs: Any, num_batches: int) -> Iterator[list[Tensor]]:
        """The outputs of each batch of a call, which come joined."""
        tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        for index in range(num_batches):
            yield [
                _part(tensor.detach(), axes, index, num_batches)
                for tensor, axes in zip(tensors, self.num_axes, strict=True)
            ]

    def update_metrics(self, tensors: Sequence[Tensor]) -> None:
        left = iter(tensors)
        for metric, arguments in self.metric_calls:
            positional, named = map_tensors(arguments, lambda _: next(left))
            metric.update(*positional, **named)


def _part(tensor: Tensor, num_axes: int, index: int, num_batches: int) -> Tensor:
    if num_axes == 0:
        return tensor.reshape(num_batches)[index]
    rows = tensor.shape[0] // num_batches
    return tensor[index * rows : (index + 1) * rows]


class _Tracing:
    """What the step does while it is traced; one object, whichever of PopTorch's copies of the module is called."""

    def __init__(self) -> None:
        self.phase: Phase = "train"
        self.batch: Any = None  # whose structure the flat tensors have
        self.traced = Traced()


class Step(nn.Module):
    """Takes the tensors of a batch one by one, and gives the loss, or tensors for the host."""

    def __init__(self, module: LossModule, mark_loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net = module.net
        # Through __dict__: PopTorch copies the module, and all copies must see the same.
        self.__dict__["whole"] = module
        self.__dict__["mark_loss"] = mark_loss
        self.__dict__["tracing"] = _Tracing()

    @contextmanager
    def tracing_as(self, phase: Phase, batch: Any) -> Iterator[Traced]:
        """Around a compilation, which runs Python once; fills what it gives."""
        tracing: _Tracing = self.__dict__["tracing"]
        tracing.phase, tracing.batch, tracing.traced = phase, batch, Traced()
        self.__dict__["whole"].train(phase == "train")
        try:
            yield tracing.traced
        finally:
            self.__dict__["whole"].train()

    def forward(self, *tensors: Tensor) -> Any:
        tracing: _Tracing = self.__dict__["tracing"]
        batch = restore_batch(tracing.batch, tensors)
        with _captured_metrics(tracing.traced.metric_calls):
            if tracing.phase == "predict":
                return self._predict(batch, tracing.traced)
            loss = split_loss(self.__dict__["whole"].call(batch))[0]
        if tracing.phase == "train":
            # Metrics are those of an evaluation, and start anew there.
            return self.__dict__["mark_loss"](loss)
        inputs = [t for _, arguments in tracing.traced.metric_calls for _, t in walk_tensors(arguments)]
        outputs = (loss, *inputs)
        tracing.traced.num_axes = [output.ndim for output in outputs]
        return outputs

    def _predict(self, batch: Any, traced: Traced) -> tuple[Tensor, ...]:
        named = name_outputs(self.__dict__["whole"].predict(batch))
        traced.names = [name for name, _ in named]
        traced.num_axes = [tensor.ndim for _, tensor in named]
        return tuple(tensor for _, tensor in named)


def flatten_batch(batch: Any) -> list[Tensor]:
    """The tensors of a batch, each with an axis that batches can be joined along."""
    return [tensor.reshape(1) if tensor.ndim == 0 else tensor for _, tensor in walk_tensors(batch)]


def restore_batch(like: Any, tensors: Sequence[Tensor]) -> Any:
    left = iter(tensors)

    def take(old: Tensor) -> Tensor:
        tensor = next(left)
        return tensor.reshape(()) if old.ndim == 0 else tensor

    return map_tensors(like, take)


@contextmanager
def _captured_metrics(calls: list[tuple[Metric, Any]]) -> Iterator[None]:
    """Inside, calling a metric only notes what it was called with."""

    def note_call(metric: Metric, *arguments: Any, **named: Any) -> None:
        calls.append((metric, (arguments, named)))

    def refuse(metric: Metric, **amounts: Tensor) -> None:
        raise UnsupportedError(
            f"the metric '{metric.name}' is updated inside the program of an IPU, where it would count once and never again.",
            "Call the metric itself, metric(labels=..., predictions=...): its inputs then come back to the host.",
        )

    former_call, former_add = Metric.__call__, Metric.add
    Metric.__call__ = note_call  # type: ignore[assignment, method-assign]
    Metric.add = refuse  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Metric.__call__, Metric.add = former_call, former_add  # type: ignore[method-assign]
