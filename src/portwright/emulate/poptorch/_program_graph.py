"""The ops of a traced step as plain data, and the function that replays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Given(NamedTuple):
    """A tensor from outside of the step: `kind` is weight, input or constant; `key` a name, or an input's number as text."""

    kind: str
    key: str


class Value(NamedTuple):
    """What op number `op` gives; `path` leads to a tensor where the op gives a tuple or list."""

    op: int
    path: tuple[int, ...] = ()


Ref = Given | Value


class Layout(NamedTuple):
    """What a tensor from outside must look like at each run: shapes and strides are parts of the program."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.stride(), int(tensor.storage_offset()))


@dataclass(frozen=True)
class Op:
    """One op: what is called with what, where it comes from, and the memory it uses (numbers of allocations)."""

    target: Any  # torch._ops.OpOverload, or one of the functions in RANDOM_STATE
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: str | None = None
    module: str | None = None
    tag: Any = None
    is_backward: bool = False
    allocates: Mapping[int, int] = field(default_factory=dict)  # allocation -> bytes
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    lasts: bool = False  # writes into what is given, which others see


class ProgramNode(NamedTuple):
    """One op of a program, for whoever accounts for it.

    `output_bytes` is the memory that the op allocates: 0 for a view and for an op in place, whose memory is another op's. It is
    free again after node number `last_use`, which is the number of nodes where the memory leaves the program (outputs, gradients).
    `kept_bytes` are those of the `output_bytes` of a forward op that a backward op reads.
    """

    name: str
    tag: Any
    line: str | None
    module: str | None
    is_backward: bool
    output_bytes: int
    kept_bytes: int
    last_use: int


@dataclass(frozen=True)
class Parts:
    """All that a program is made of."""

    ops: Sequence[Op]
    layouts: Mapping[Given, Layout]
    constants: Mapping[str, Tensor]
    outputs: Sequence[Ref]
    outputs_structure: dict[str, Any]
    gradients: Mapping[str, Ref]
    nodes: Sequence[ProgramNode]
    tied: Mapping[str, str]
    written: frozenset[str]
    training: bool
    partials: torch.dtype | None


def get_random_state() -> Tensor:
    """The state of torch's generator; a step asks for it where it draws the same numbers twice (torch.utils.checkpoint)."""
    return torch.default_generator.get_state()


def set_random_state(state: Tensor) -> None:
    torch.default_generator.set_state(state)


RANDOM_STATE: dict[str, Callable[..., Any]] = {
    "random_state.get": get_random_state,
    "random_state.set": set_random_state,
}
_RANDOM_STATE_NAMES = {function: name for name, function in RANDOM_STATE.items()}

# These write into running statistics although their schemas do not say so: argument numbers, and the flag that switches it on.
_UNDECLARED_WRITES: dict[str, tuple[tuple[int, ...], int]] = {
    "aten.native_batch_norm.default": ((3, 4), 5),
    "aten.rrelu_with_noise.default": ((1,), 4),
}


def name_of(target: Any) -> str:
    """aten.add.Tensor for the op that torch calls so."""
    return _RANDOM_STATE_NAMES.get(target) or str(target)


def refs_in(thing: Any) -> Iterator[Ref]:
    if isinstance(thing, Given | Value):
        yield thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from refs_in(item)
    elif isinstance(thing, Mapping):
        for item in thing.values():
            yield from refs_in(item)


def map_refs(thing: Any, change: Callable[[Ref], Any]) -> Any:
    """The same arguments, with what `change` gives in the place of each ref."""
    if isinstance(thing, Given | Value):
        return change(thing)
    if isinstance(thing, list | tuple):
        return type(thing)(map_refs(item, change) for item in thing)
    if isinstance(thing, Mapping):
        return {key: map_refs(item, change) for key, item in thing.items()}
    return thing


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments whose memory the op writes into."""
    if target in _RANDOM_STATE_NAMES:
        return []
    written: list[Any] = []
    for number, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            there = args[number] if number < len(args) else kwargs.get(argument.name)
            written.extend(there if isinstance(there, list | tuple) else [there])
    undeclared, flag = _UNDECLARED_WRITES.get(name_of(target), ((), 0))
    if undeclared and not written and len(args) > flag and args[flag]:
        written.extend(args[number] for number in undeclared)
    return [argument for argument in written if argument is not None]


def has_effect(op: Op) -> bool:
    """Whether the op does more than to compute: it draws random numbers, checks, or writes into what is given."""
    if op.target in _RANDOM_STATE_NAMES:
        return True
    draws = torch.Tag.nondeterministic_seeded in op.target.tags
    return draws or not op.target._schema.returns or op.lasts


def prune(ops: Sequence[Op], results: Any, leaving: frozenset[int]) -> tuple[list[Op], Any]:
    """Leaves out what no result needs, and gives the other ops their numbers anew, also in `results`."""
    needed = {ref.op for ref in refs_in(results) if isinstance(ref, Value)}
    seen = set(leaving)  # memory that somebody reads later
    kept: list[int] = []
    for number in reversed(range(len(ops))):
        op = ops[number]
        if number in needed or has_effect(op) or not seen.isdisjoint(op.writes):
            kept.append(number)
            seen.update(op.reads)
            needed.update(ref.op for ref in refs_in((op.args, op.kwargs)) if isinstance(ref, Value))
    new = {number: place for place, number in enumerate(reversed(kept))}

    def renumber(ref: Ref) -> Ref:
        return Value(new[ref.op], ref.path) if isinstance(ref, Value) else ref

    pruned = [
        replace(ops[n], args=map_refs(ops[n].args, renumber), kwargs=map_refs(ops[n].kwargs, renumber))
        for n in new
    ]
    return pruned, map_refs(results, renumber)


def account(ops: Sequence[Op], leaving: frozenset[int]) -> list[ProgramNode]:
    """The nodes of a program; `leaving` are the allocations that outlive it."""
    last_use: dict[int, int] = {}
    is_kept: set[int] = set()
    for number, op in enumerate(ops):
        for allocation in (*op.reads, *op.allocates):
            last_use[allocation] = number
            if op.is_backward and allocation not in op.allocates:
                is_kept.add(allocation)
    last_use.update(dict.fromkeys(leaving, len(ops)))
    return [
        ProgramNode(
            name_of(op.target),
            op.tag,
            op.line,
            op.module,
            op.is_backward,
            sum(op.allocates.values()),
            0 if op.is_backward else sum(size for a, size in op.allocates.items() if a in is_kept),
            max((last_use[allocation] for allocation in op.allocates), default=number),
        )
        for number, op in enumerate(ops)
    ]
