"""What one micro-batch of a model does, call by call: the form in which an arbitrary model can be cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

ValueKind = Literal["batch", "weight", "constant", "made"]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a value in the recorded arguments of a call."""

    index: int


@dataclass(slots=True)
class Value:
    """One tensor that flows through a micro-batch.

    `batch`: a tensor of the micro-batch, by its number. `weight`: a parameter or buffer, by its name. `constant`: a
    tensor that was there before. `made`: the result of a call.
    """

    kind: ValueKind
    made_by: int  # the call; -1 where none did
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    storage: int  # values of one storage share memory
    can_remake: bool  # from the batch and constants alone, so that each stage can make its own
    number: int = -1
    name: str = ""
    constant: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


@dataclass(slots=True)
class Call:
    """One call of torch, with references in place of tensors."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    uses: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]  # leaf of the result's tree, value
    writes: tuple[int, ...]  # values changed in place
    line: str  # of the user's code
    has_grad: bool
    autocast: tuple[bool, torch.dtype] | None  # where it differs from the run's own
    is_random: bool = False
    work: float = 0.0


@dataclass(slots=True)
class Span:
    """One call of a module: the calls of torch from `first` up to `last`."""

    path: str
    number: int  # of this module's calls
    module: nn.Module
    first: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: frozenset[int]
    has_grad: bool
    autocast: tuple[bool, torch.dtype] | None
    is_checkpointed: bool
    has_plain_arguments: bool
    last: int = -1
    outputs: tuple[tuple[int, int], ...] = ()
    is_closed: bool = False  # nothing but arguments comes in, and nothing but the result leaves


class Place(NamedTuple):
    """Where a stage begins: at the n-th call of a module; the same in traces of other shapes."""

    path: str
    number: int

    def __str__(self) -> str:
        return self.path if self.number == 0 else f"{self.path} (call {self.number + 1})"


@dataclass(slots=True)
class Tape:
    """All calls of one micro-batch in order, the modules that made them, and the loss."""

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    loss: int = -1
    changed: dict[str, list[str]] = field(
        default_factory=dict
    )  # attributes that the micro-batch changed, by module

    def finish(self) -> None:
        """Settles which spans can be run as the module itself."""
        last_use: dict[int, int] = {self.loss: len(self.calls)}
        for position, call in enumerate(self.calls):
            for index in (*call.uses, *call.writes):
                last_use[index] = position
        last_use[self.loss] = len(self.calls)
        for span in self.spans:
            span.is_closed = self._is_closed(span, last_use)

    def _is_closed(self, span: Span, last_use: Mapping[int, int]) -> bool:
        if not span.has_plain_arguments:
            return False
        results = {value for _, value in span.outputs}
        for call in self.calls[span.first : span.last]:
            for index in call.uses:
                value = self.values[index]
                if (
                    value.kind in ("made", "batch")
                    and value.made_by < span.first
                    and index not in span.arguments
                ):
                    return False
            for _, index in call.outputs:
                if (
                    last_use.get(index, -1) >= span.last
                    and index not in results
                    and self.values[index].made_by >= span.first
                ):
                    return False
        return True

    def find(self, place: Place) -> Span | None:
        return next((s for s in self.spans if s.path == place.path and s.number == place.number), None)

    def weights_of(self, first: int, last: int) -> set[str]:
        """Names of the parameters and buffers that a stretch of the calls reads or writes."""
        return {
            self.values[index].name
            for call in self.calls[first:last]
            for index in call.uses
            if self.values[index].kind == "weight"
        }


def fill(template: Any, values: Mapping[int, Any]) -> Any:
    """The recorded arguments with real tensors in place of references."""
    return pytree.tree_map_only(Ref, lambda ref: values[ref.index], template)
