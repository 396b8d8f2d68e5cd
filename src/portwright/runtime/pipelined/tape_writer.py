"""Writing the tape: which tensor is which value, and what is known of each."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree

from portwright.errors import UserError
from portwright.runtime.pipelined.costs import Costs
from portwright.runtime.pipelined.stand_ins import StandIns
from portwright.runtime.pipelined.tape import Call, Ref, Tape, Value
from portwright.runtime.pipelined.user_code import user_line

UNKNOWN = object()
RESIDENT_CURE = "Use -D runconfig.execution=resident, or write it with torch's own functions."
_MOST_KNOWN = 1 << 24  # elements of a constant whose values are kept, since Python may ask for them


class TapeWriter:
    """Knows every tensor of a trace by its identity."""

    def __init__(self, stand_ins: StandIns, device: torch.device) -> None:
        self.tape = Tape()
        self.costs = Costs(device)
        self.weights = stand_ins.by_identity()
        self.weight_of: dict[int, torch.Tensor] = {}  # the stand-in of a value that is a weight
        self.known: dict[int, torch.Tensor] = {}  # values of what depends on neither batch nor weights
        self.touched: list[int] = []  # weights that the call at hand uses inside
        self.outer_autocast: tuple[bool, torch.dtype] = (False, torch.float32)
        self._device = device
        self._index: dict[int, int] = {}  # of a tensor, by its identity
        self._alive: list[Any] = []  # so that no identity comes twice
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
            # Written once, a value is no longer what its call made; and if the writer is not known, nor are its aliases.
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
        # What the step does to it is computed on copies, and must not happen to the user's own.
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
            if index in writer.weight_of:  # a real one among tensors without data ends the process
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
        """With these in place of the tensors."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def template(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.filled([Ref(index) for index in self.indices])


def looks_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype, bool, int]:
    with torch._C.DisableTorchFunction():  # to look is no call of the model's
        return tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.untyped_storage()._cdata


def tensors_of(result: Any) -> list[tuple[int, torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        return [(0, result)]
    leaves = pytree.tree_leaves(result)
    return [(leaf, item) for leaf, item in enumerate(leaves) if isinstance(item, torch.Tensor)]
