"""The module that PopTorch wraps: the user's model on flat tensors, with its loss marked and metrics' inputs as outputs.

PopTorch runs Python only once, to trace. This module keeps what the host must do at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from portwright.base_model import LossModule, split_loss
from portwright.data.loader import ResumableLoader
from portwright.errors import UnsupportedError, UserError, suggest
from portwright.patched import patched
from portwright.runtime.fixed_shape import FixedShapeFeed, Signature
from portwright.runtime.metrics.base import Metric
from portwright.targets.ipu.section import IpuSection
from portwright.watching.trees import map_tensors, name_outputs, walk_tensors

Phase = Literal["train", "eval", "predict"]
PREFIX = "net."  # of the weights' names in the wrapped module


class Traced:
    """A trace's outputs, and the metrics that they belong to."""

    def __init__(self) -> None:
        self.num_axes: list[int] = []  # of each output of one batch
        self.names: list[str] = []  # predict: the name of each output
        self.metric_calls: list[tuple[Metric, Any]] = []  # eval: each with (arguments, named arguments)

    def split(self, outputs: Any, num_batches: int) -> Iterator[list[Tensor]]:
        """Splits a call's joined outputs into those of each batch."""
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
    """The state of a trace, one object for all of PopTorch's copies of the module."""

    def __init__(self) -> None:
        self.phase: Phase = "train"
        self.batch: Any = None  # gives the structure of the flat tensors
        self.traced = Traced()


class Step(nn.Module):
    """Takes a batch's tensors as arguments, and gives the loss, or tensors for the host."""

    def __init__(self, module: LossModule, mark_loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net = module.net
        # In __dict__, so that all of PopTorch's copies of this module share it.
        self.__dict__["whole"] = module
        self.__dict__["mark_loss"] = mark_loss
        self.__dict__["tracing"] = _Tracing()

    @contextmanager
    def tracing_as(self, phase: Phase, batch: Any) -> Iterator[Traced]:
        """Encloses a compilation, which runs Python once and fills the yielded trace."""
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
            # Training ignores metrics.
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
    """A batch's tensors, each with an axis along which batches can be joined."""
    return [tensor.reshape(1) if tensor.ndim == 0 else tensor for _, tensor in walk_tensors(batch)]


def restore_batch(like: Any, tensors: Sequence[Tensor]) -> Any:
    left = iter(tensors)

    def take(old: Tensor) -> Tensor:
        tensor = next(left)
        return tensor.reshape(()) if old.ndim == 0 else tensor

    return map_tensors(like, take)


@contextmanager
def _captured_metrics(calls: list[tuple[Metric, Any]]) -> Iterator[None]:
    """Within, calling a metric only notes its arguments."""

    def note_call(metric: Metric, *arguments: Any, **named: Any) -> None:
        calls.append((metric, (arguments, named)))

    def refuse(metric: Metric, **amounts: Tensor) -> None:
        raise UnsupportedError(
            f"the metric '{metric.name}' is updated inside the program of an IPU, where it would count once and never again.",
            "Call the metric itself, metric(labels=..., predictions=...): its inputs then come back to the host.",
        )

    with patched(Metric, "__call__", note_call), patched(Metric, "add", refuse):
        yield


def begin_blocks(poptorch: Any, whole: nn.Module, net: nn.Module, section: IpuSection) -> None:
    """Marks where blocks begin; the first block begins at `whole`, since no op may be outside of blocks."""
    paths = [path for path, _ in net.named_modules()]
    begun: dict[str, str] = {}
    for index, block in enumerate(section.blocks):
        path = next((path for path in paths if path and fnmatchcase(path, block.module)), None)
        if path is None:
            raise UserError(
                f"ipu.blocks.{index}.module: the model has no module '{block.module}'.",
                suggest(
                    block.module, [path for path in paths if path.count(".") <= block.module.count(".")][1:]
                ),
            )
        if path in begun:
            raise UserError(
                f"ipu.blocks.{index}.module: '{block.module}' begins with the module '{path}', as '{begun[path]}' does.",
                "Let each block begin with a module of its own.",
            )
        begun[path] = block.module
        module = whole if index == 0 else net.get_submodule(path)
        poptorch.BeginBlock(module, section.stage_of(index), block.ipu)


KEEPER = "a program of an IPU"  # what fixes shapes and the values in a batch that are not tensors


class Call(NamedTuple):
    """The inputs of one call: the joined batches, and the first batch, whose structure all have."""

    tensors: list[Tensor]
    batch: Any
    num_samples: int
    signature: Signature


def join(batches: list[Any]) -> list[Tensor]:
    parts = [flatten_batch(batch) for batch in batches]
    if len(parts) == 1:
        return [tensor.contiguous() for tensor in parts[0]]
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


class TrainingFeed(FixedShapeFeed):
    """An endless sequence of calls."""

    def __init__(
        self,
        loader: ResumableLoader,
        num_batches: int,
        prepare: Callable[[Any], Any],
        note: Callable[[str], None],
    ) -> None:
        super().__init__(loader, KEEPER, note, prepare)
        self._num_batches = num_batches

    def next_call(self) -> Call:
        batches, num_samples = [], 0
        for _ in range(self._num_batches):
            batches.append(self.next_batch())
            num_samples += self._loader.last_counts[1]
        return Call(join(batches), batches[0], num_samples, self._signature)
