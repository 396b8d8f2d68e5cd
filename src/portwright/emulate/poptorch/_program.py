"""The frozen program of a step: traced once, replayed at each call without the user's Python, as on an IPU."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._errors import RangeError, StateError, refuse


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
    """One op: what is called with what, the user's line, and the memory it uses (numbers of allocations)."""

    target: Any  # torch._ops.OpOverload, or one of the functions in RANDOM_STATE
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: str = ""
    is_backward: bool = False
    allocates: frozenset[int] = frozenset()  # none of a view, nor of an op in place
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    lasts: bool = False  # writes into what is given, which others see


class ProgramNode(NamedTuple):
    """One op of a program, for whoever speaks of it."""

    name: str
    line: str
    is_backward: bool


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


def prune(ops: Sequence[Op], results: Any, leaving: Collection[int]) -> tuple[list[Op], Any]:
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


Observe = Callable[[Any], None]


@dataclass(frozen=True)
class Program:
    """One step of a model: outputs, and when it trains the gradients of its loss, from weights and inputs.

    `written` are the names of the weights that a run changes in place (running statistics). `tied` says of a weight that is
    the same tensor as an earlier one the name of that one: it is read and changed under that name, and has no gradient of its own.
    """

    ops: Sequence[Op]
    layouts: Mapping[Given, Layout]
    constants: Mapping[str, Tensor]
    outputs: Sequence[Ref]
    gradients: Mapping[str, Ref]
    tied: Mapping[str, str]
    written: frozenset[str]
    training: bool

    @functools.cached_property
    def _lives(self) -> tuple[dict[int, set[Value]], dict[int, list[Ref]]]:
        """Of each op: what of its result is used, and what it is the last one to use."""
        last = {ref: number for number, op in enumerate(self.ops) for ref in refs_in((op.args, op.kwargs))}
        results = {*self.outputs, *self.gradients.values()}
        items: dict[int, set[Value]] = defaultdict(set)
        dead: dict[int, list[Ref]] = defaultdict(list)
        for ref in last.keys() | results:
            if isinstance(ref, Value):
                items[ref.op].add(ref)
        for ref in last.keys() - results:
            dead[last[ref]].append(ref)
        return items, dead

    @functools.cached_property
    def _needs_offset(self) -> bool:
        return any(map(_names_offset, self.ops))

    def run(
        self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], observe: Observe | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The tensors of the result, and the gradients by name; a trained weight that the loss does not depend on has none.

        Nothing that is returned shares memory with weights or inputs. Inputs are never changed, weights as `written` says.
        `observe` is shown what each op of the backward pass gives that is no view.
        """
        given = [self._bind(ref, layout, weights, inputs) for ref, layout in self.layouts.items()]
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            # The ops were recorded below autograd; some kernels look at the mode all the same (oneDNN's LSTM keeps its workspace).
            stack.enter_context(torch.set_grad_enabled(self.training))
            stack.enter_context(torch._C._AutoDispatchBelowAutograd())
            if torch.is_autocast_enabled("cpu"):  # its casts are in the program
                stack.enter_context(torch.autocast("cpu", enabled=False))
            results = self._replay(dict(zip(self.layouts, given, strict=True)), observe)
        for ref, tensor in zip(self.layouts, given, strict=True):
            if ref.kind == "weight" and ref.key in self.written and tensor is not weights[ref.key]:
                weights[ref.key].detach().copy_(tensor)  # had other strides than the program's
        num_outputs = len(self.outputs)
        return results[:num_outputs], dict(zip(self.gradients, results[num_outputs:], strict=True))

    def _replay(self, values: dict[Ref, Tensor], observe: Observe | None) -> list[Tensor]:
        items, dead = self._lives
        for number, op in enumerate(self.ops):
            args = _filled(op.args, values)
            kwargs = {name: _filled(given, values) for name, given in op.kwargs.items()}
            try:
                result = op.target(*args, **kwargs)
            except (IndexError, RuntimeError) as error:
                raise _explain(error, op) from error
            if observe is not None and op.is_backward and op.allocates:
                observe(result)
            for item in items[number]:
                values[item] = functools.reduce(operator.getitem, item.path, result)
            for ref in dead[number]:
                del values[ref]
        return [values[ref] for ref in (*self.outputs, *self.gradients.values())]

    def nodes(self) -> list[ProgramNode]:
        """Each op in order."""
        return [ProgramNode(name_of(op.target), op.line, op.is_backward) for op in self.ops]

    def _bind(
        self, ref: Given, layout: Layout, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> Tensor:
        if ref.kind == "constant":
            return self.constants[ref.key]
        try:
            tensor = weights[ref.key] if ref.kind == "weight" else inputs[int(ref.key)]
        except (KeyError, IndexError):
            there = f"{len(inputs)} inputs" if ref.kind == "input" else f"{len(weights)} weights"
            raise refuse(
                f"the {ref.kind} {ref.key} of the compiled program is missing from the {there} given to it."
            ) from None
        if tensor.shape != layout.shape or tensor.dtype != layout.dtype:
            raise refuse(
                f"the {ref.kind} {ref.key} is a {tensor.dtype} of shape {tuple(tensor.shape)}, and the program was compiled for "
                f"a {layout.dtype} of shape {layout.shape}: shapes are fixed when the model is compiled."
            )
        if tensor.stride() == layout.stride and (
            not self._needs_offset or tensor.storage_offset() == layout.offset
        ):
            return tensor
        size = layout.offset + 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
        memory = torch.empty(size if tensor.numel() else 0, dtype=layout.dtype)
        laid = memory.as_strided(layout.shape, layout.stride, layout.offset if tensor.numel() else 0)
        with torch.no_grad():
            return laid.copy_(tensor)


def _names_offset(op: Op) -> bool:
    """Whether the op names a place in memory by its distance from the beginning, which a view of a larger tensor shifts."""
    return "as_strided" in str(op.target) and (
        len(op.args) > 3 or op.kwargs.get("storage_offset") is not None
    )


def _filled(argument: Any, values: Mapping[Ref, Tensor]) -> Any:
    """An op's argument with tensors in the place of refs."""
    if isinstance(argument, (Given, Value)):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return [_filled(item, values) for item in argument]
    return argument


def _explain(error: Exception, op: Op) -> poptorch_core.Error:
    """The error of an op with the line that it was recorded at, which is not on the stack any more."""
    where = f" [{op.line}]" if op.line else ""
    kind = RangeError if isinstance(error, IndexError) else StateError
    explained = refuse(f"{name_of(op.target)}: {str(error).strip().rstrip('.')}.{where}", kind)
    explained.location = op.line
    return explained
