"""The calls of torch in one micro-batch of a model, in order, which can be cut into stages; and the writer that records them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from portwright.errors import UserError
from portwright.patched import patched
from portwright.runtime.pipelined.user_code import user_line
from portwright.runtime.pipelined.weights import StandIns

ValueKind = Literal["batch", "weight", "constant", "made"]
UNKNOWN = object()
RESIDENT_CURE = "Use -D runconfig.execution=resident, or write it with torch's own functions."
_MOST_KNOWN = 1 << 24  # elements of a constant whose values are kept, since Python may ask for them
# Operations that a device does in the time in which it moves one byte: one core of a server CPU at about 40 GFLOP/s and
# 10 GB/s; an H100 or H200 at about 400 TFLOP/s (bf16, dense) and 4 TB/s.
_OPERATIONS_A_BYTE = {"cpu": 4.0, "cuda": 100.0}


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
        return math.prod(self.shape) * self.dtype.itemsize


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
    # attributes that the micro-batch changed, by module
    changed: dict[str, list[str]] = field(default_factory=dict)

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


class Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the work of every op to `work`, as the planner counts it: operations, and bytes moved at the device's balance."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = 0.0
        self._per_byte = _OPERATIONS_A_BYTE.get(device.type, 100.0)
        self.is_paused = False

    def paused(self) -> AbstractContextManager[None]:
        return patched(self, "is_paused", True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.is_paused or func.is_view:
            return result
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.work += float(count(*args, **kwargs, out_val=result))
        moved = 0
        for item in (*args, *(result if isinstance(result, tuple | list) else (result,))):
            if isinstance(item, torch.Tensor):
                moved += item.numel() * item.element_size()
        self.work += self._per_byte * moved
        return result


class TapeWriter:
    """Knows every tensor of a trace by its identity."""

    def __init__(self, stand_ins: StandIns, device: torch.device) -> None:
        self.tape = Tape()
        self.costs = Costs(device)
        self.weights = stand_ins.by_identity()
        self.weight_of: dict[int, torch.Tensor] = {}  # the stand-in of a value that is a weight
        self.known: dict[int, torch.Tensor] = {}  # values of what depends on neither batch nor weights
        self.touched: list[int] = []  # weights that the current call uses inside
        self.outer_autocast: tuple[bool, torch.dtype] = (False, torch.float32)
        self._device = device
        self._index: dict[int, int] = {}  # of a tensor, by its identity
        self._alive: list[Any] = []  # keeps ids from being used again
        self._kept: list[torch.Tensor] = []
        self._mode = stand_ins.mode
        self.stand_in_of: dict[int, torch.Tensor] = {}  # of a value that is a constant

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a value of the trace, or a weight."""
        return id(tensor) in self._index or id(tensor) in self.weights

    def keep(
        self,
        target: Any,
        given: Arguments,
        result: Any,
        writes: list[int],
        *,
        is_random: bool,
        known: Any = UNKNOWN,
    ) -> None:
        """Adds a call, with the values that it made."""
        position, indices = len(self.tape.calls), given.indices
        args, kwargs = given.template()
        values = self.tape.values
        remade = not is_random and not writes and all(values[index].can_remake for index in indices)
        outputs = []
        known_tensors = dict(tensors_of(known)) if known is not UNKNOWN else {}
        for leaf, tensor in tensors_of(result):
            index = self._index.get(id(tensor), -1)
            if index < 0:
                can_remake = remade and not tensor.requires_grad
                index = self.add(tensor, Value("made", position, *looks_of(tensor), can_remake=can_remake))
                if leaf in known_tensors and tensor.numel() <= _MOST_KNOWN:
                    self.known[index] = known_tensors[leaf]
            else:
                values[index].requires_grad = tensor.requires_grad
            outputs.append((leaf, index))
        for index in writes:
            # A value that is written to is no longer what its call made; if a write's result is not known, nor are its aliases.
            for other, value in enumerate(values):
                if value.storage == values[index].storage:
                    value.can_remake = False
                    value.requires_grad = value.requires_grad or self._alive[other].requires_grad
                    if known is UNKNOWN:
                        self.known.pop(other, None)
        self.tape.calls.append(
            Call(
                target,
                args,
                kwargs,
                tuple(dict.fromkeys((*indices, *self.touched))),
                tuple(outputs),
                tuple(dict.fromkeys(writes)),
                user_line(),
                torch.is_grad_enabled(),
                self.autocast_here(),
                is_random,
                self.costs.work,
            )
        )
        self.touched = []

    def find(self, tensor: torch.Tensor) -> int:
        found = self._index.get(id(tensor))
        if found is not None:
            return found
        if id(tensor) in self.weights:
            name, stand_in = self.weights[id(tensor)]
            index = self._index.get(id(stand_in))
            if index is None:
                index = self.add(
                    stand_in, Value("weight", -1, *looks_of(stand_in), can_remake=False, name=name)
                )
                self.weight_of[index] = stand_in
            self._index[id(tensor)] = index
            return index
        if isinstance(tensor, FakeTensor):
            raise UserError(
                f"{user_line()} uses a tensor that came from a call which a pipeline cannot follow "
                f"(shape {list(tensor.shape)}).",
                RESIDENT_CURE,
            )
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise UserError(
                f"{user_line()} is inside of a transform of torch.func, such as vmap.", RESIDENT_CURE
            )
        # The trace computes on a copy, so that the user's own tensor does not change.
        with unset_fake_temporarily(), self.costs.paused(), torch._C.DisableTorchFunction():
            stand_in = self._mode.from_tensor(tensor)
            copy = tensor.detach().clone() if tensor.numel() <= _MOST_KNOWN else None
        index = self.add(
            stand_in, Value("constant", -1, *looks_of(stand_in), can_remake=True, constant=tensor)
        )
        self.stand_in_of[index] = stand_in
        self._index[id(tensor)] = index
        self._kept.append(tensor)
        if copy is not None:
            self.known[index] = copy
        return index

    def add(self, tensor: torch.Tensor, value: Value) -> int:
        self.tape.values.append(value)
        self._alive.append(tensor)
        self._index[id(tensor)] = len(self.tape.values) - 1
        return len(self.tape.values) - 1

    def autocast_now(self) -> tuple[bool, torch.dtype]:
        kind = self._device.type
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def autocast_here(self) -> tuple[bool, torch.dtype] | None:
        now = self.autocast_now()
        return None if now == self.outer_autocast else now


class Arguments:
    """The arguments of a call: its tensors as values, with stand-ins in the place of weights."""

    def __init__(self, writer: TapeWriter, args: Any, kwargs: Any, *, known_only: bool = False) -> None:
        self.leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        if known_only:
            self.places = [place for place in self.places if writer.is_known(self.leaves[place])]
        self.indices = [writer.find(self.leaves[place]) for place in self.places]
        for place, index in zip(self.places, self.indices, strict=True):
            if index in writer.weight_of:  # a real tensor among those without data ends the process
                self.leaves[place] = writer.weight_of[index]
            elif index in writer.stand_in_of:
                self.leaves[place] = writer.stand_in_of[index]
        self._versions = [self.leaves[place]._version for place in self.places]

    def written(self) -> list[int]:
        """Values that were changed in place since."""
        return [
            index
            for place, index, version in zip(self.places, self.indices, self._versions, strict=True)
            if self.leaves[place]._version != version
        ]

    def rebuilt(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(self.leaves, self._spec)
        return args, kwargs

    def filled(self, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these values in place of their tensors."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def template(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.filled([Ref(index) for index in self.indices])


def looks_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype, bool, int]:
    with torch._C.DisableTorchFunction():  # reading these is no call of the model
        return tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.untyped_storage()._cdata


def tensors_of(result: Any) -> list[tuple[int, torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        return [(0, result)]
    leaves = pytree.tree_leaves(result)
    return [(leaf, item) for leaf, item in enumerate(leaves) if isinstance(item, torch.Tensor)]
