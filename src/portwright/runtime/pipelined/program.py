"""A runnable stage of a model: the calls of its part of the tape; a module that lies in it entirely is called as one.

A stage repeats recorded calls, and nothing else: models whose Python does not do the same in every step are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from portwright.errors import UserError
from portwright.runtime.pipelined.tape import Call, Ref, Span, Tape, Value, fill
from portwright.runtime.pipelined.weights import Weights
from portwright.watching.trees import walk_tensors

Look = Callable[[str, torch.Tensor], None]


@dataclass(slots=True)
class Step:
    """One call of a stage: of torch, or of a whole module."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[tuple[int, int], ...]
    has_grad: bool
    autocast: tuple[bool, torch.dtype] | None
    label: str  # for messages: the layer, or the line of the user's code
    writes: tuple[int, ...] = ()  # values that a call of torch changes in place
    dead: tuple[int, ...] = ()  # values that no later step needs
    is_flat: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_flat = all(type(arg) is Ref or not _refs(arg) for arg in self.args) and not _refs(self.kwargs)

    def used(self) -> list[int]:
        return [*_refs(self.args), *_refs(self.kwargs)]

    def run(self, values: dict[int, Any], device_type: str, look: Look | None = None) -> None:
        if self.is_flat:
            args: Any = [values[arg.index] if type(arg) is Ref else arg for arg in self.args]
            kwargs = self.kwargs
        else:
            args, kwargs = fill(self.args, values), fill(self.kwargs, values)
        if self.autocast is None and self.has_grad == torch.is_grad_enabled():
            result = self.target(*args, **kwargs)
        else:
            with ExitStack() as stack:
                stack.enter_context(torch.set_grad_enabled(self.has_grad and torch.is_grad_enabled()))
                if self.autocast is not None:
                    enabled, dtype = self.autocast
                    stack.enter_context(torch.autocast(device_type, dtype=dtype, enabled=enabled))
                result = self.target(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            for _, index in self.outputs:
                values[index] = result
        elif self.outputs:
            leaves = pytree.tree_leaves(result)
            for leaf, index in self.outputs:
                values[index] = leaves[leaf]
        if look is not None:
            for _, index in self.outputs:
                look(self.label, values[index])
        for index in self.dead:
            values.pop(index, None)


def _refs(tree: Any) -> list[int]:
    return [leaf.index for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Ref)]


@dataclass(slots=True)
class Program:
    """One stage: what it takes from the stage before it, its steps, and what it hands on (or the loss)."""

    tape: Tape
    steps: list[Step]
    takes: tuple[int, ...]
    gives: tuple[int, ...]  # the loss alone, in the last stage
    is_last: bool
    weight_names: frozenset[str]
    trainable_detour: bool  # trained weights reach an output on a path that has no input
    _batch: tuple[tuple[int, int], ...] = ()
    _constants: tuple[tuple[int, torch.Tensor], ...] = ()
    _weights: tuple[tuple[int, str], ...] = ()
    _clones: frozenset[int] = frozenset()

    def looks(self, indices: Sequence[int]) -> list[Value]:
        return [self.tape.values[index] for index in indices]

    def run(
        self,
        taken: Sequence[torch.Tensor],
        micro_batch: Any,
        weights: Weights,
        device_type: str,
        *,
        copies: bool = False,
        look: Look | None = None,
    ) -> tuple[Any, ...]:
        """Runs the stage on a micro-batch and gives its outputs. All processes have the whole batch, and take what they need.

        With `copies`, the stage's own backward pass needs no output tensor, so that a schedule may detach them in place.
        """
        values: dict[int, Any] = {}
        for index, tensor in zip(self.takes, taken, strict=True):
            # An input that is changed in place must not be the leaf at which the stage's gradients end.
            values[index] = tensor.clone() if index in self._clones else tensor
        if self._batch:
            tensors = [tensor for _, tensor in walk_tensors(micro_batch)]
            for index, number in self._batch:
                values[index] = tensors[number]
        values.update(self._constants)
        for index, name in self._weights:
            holder, key = weights[name]
            values[index] = holder[key]
        for step in self.steps:
            step.run(values, device_type, look)
        if self.is_last:
            return (values[self.gives[0]].reshape(()),)
        given = []
        for index in self.gives:
            tensor = values[index]
            if not self.tape.values[index].requires_grad:
                tensor = tensor.detach().contiguous()
            elif copies or tensor.is_leaf or tensor._is_view() or not tensor.is_contiguous():
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            given.append(tensor)
        return tuple(given)


def make_programs(tape: Tape, cuts: Sequence[int]) -> list[Program]:
    """A program for each stage; `cuts` are the calls at which the second and each later one begins."""
    edges = [0, *cuts, len(tape.calls)]
    stretches = [_steps_of(tape, first, last) for first, last in itertools.pairwise(edges)]
    stage_of = {
        index: stage
        for stage, (first, last) in enumerate(itertools.pairwise(edges))
        for call in tape.calls[first:last]
        for _, index in call.outputs
        if tape.values[index].made_by >= first
    }
    needs: list[set[int]] = []
    remade: list[list[int]] = []
    for stage, steps in enumerate(stretches):
        need, again = _needs(tape, steps, stage, stage_of, is_last=stage == len(stretches) - 1)
        needs.append(need)
        remade.append(again)
    crossing = [
        tuple(sorted({index for later in needs[stage:] for index in later if stage_of[index] < stage}))
        for stage in range(1, len(stretches))
    ]
    takes, gives = [(), *crossing], [*crossing, (tape.loss,)]
    programs = []
    for stage, (first, last) in enumerate(itertools.pairwise(edges)):
        steps = [*(_step_of(tape.calls[position]) for position in remade[stage]), *stretches[stage]]
        _mark_dead(steps, keep=set(gives[stage]))
        kinds: dict[str, list[int]] = {"batch": [], "constant": [], "weight": [], "made": []}
        for index in sorted({index for step in steps for index in step.used()}.union(gives[stage])):
            kinds[tape.values[index].kind].append(index)
        written = {tape.values[index].storage for call in tape.calls[first:last] for index in call.writes}
        program = Program(
            tape,
            steps,
            takes[stage],
            gives[stage],
            stage == len(stretches) - 1,
            frozenset(tape.weights_of(first, last)),
            _has_detour(tape, first, last, takes[stage], gives[stage]),
            tuple((index, tape.values[index].number) for index in kinds["batch"]),
            tuple((index, tape.values[index].constant) for index in kinds["constant"]),  # type: ignore[misc]
            tuple((index, tape.values[index].name) for index in kinds["weight"]),
            frozenset(index for index in takes[stage] if tape.values[index].storage in written),
        )
        programs.append(program)
    return programs


def _steps_of(tape: Tape, first: int, last: int) -> list[Step]:
    """The calls from `first` to `last`; each closed span that lies entirely within becomes one call of its module."""
    outermost: dict[int, Span] = {}
    for span in tape.spans:  # an outer span comes before those in it
        if span.is_closed and first <= span.first and span.last <= last and span.first < span.last:
            outermost.setdefault(span.first, span)
    steps: list[Step] = []
    position = first
    while position < last:
        whole = outermost.get(position)
        steps.append(_step_of(tape.calls[position]) if whole is None else _step_of_module(whole))
        position = position + 1 if whole is None else whole.last
    return steps


def _step_of(call: Call) -> Step:
    return Step(
        call.target,
        call.args,
        call.kwargs,
        call.outputs,
        call.has_grad,
        call.autocast,
        call.line,
        call.writes,
    )


def _step_of_module(span: Span) -> Step:
    target = _checkpointed(span.module) if span.is_checkpointed else span.module
    label = f"layer '{span.path}' ({type(span.module).__name__})"
    return Step(target, span.args, span.kwargs, span.outputs, span.has_grad, span.autocast, label)


def _checkpointed(module: nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(module, *args, use_reentrant=False, **kwargs)

    return run


def _needs(
    tape: Tape, steps: Sequence[Step], stage: int, stage_of: Mapping[int, int], *, is_last: bool
) -> tuple[set[int], list[int]]:
    """Values that a stage needs from other stages, and calls that it repeats for itself."""
    received: set[int] = set()
    again: set[int] = set()
    waiting = [index for step in steps for index in step.used()]
    if is_last:
        waiting.append(tape.loss)
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        value = tape.values[index]
        if index in seen or value.kind != "made" or stage_of[index] == stage:
            continue
        seen.add(index)
        if value.can_remake:
            call = tape.calls[value.made_by]
            again.add(value.made_by)
            # A constant that is written to later was made by a call too, which can be repeated.
            for used in call.uses:
                if tape.values[used].kind == "made" and stage_of[used] != stage:
                    again |= _makers(tape, used)
        else:
            received.add(index)
    return received, sorted(again)


def _makers(tape: Tape, index: int) -> set[int]:
    found: set[int] = set()
    waiting = [index]
    while waiting:
        value = tape.values[waiting.pop()]
        if value.kind == "made" and value.made_by not in found:
            found.add(value.made_by)
            waiting += tape.calls[value.made_by].uses
    return found


def _mark_dead(steps: Sequence[Step], keep: set[int]) -> None:
    """Notes at each step which values no later step needs, so that memory is freed as early as in the model itself."""
    later = set(keep)
    for step in reversed(steps):
        touched = {*step.used(), *(index for _, index in step.outputs)}
        step.dead = tuple(touched - later)
        later |= touched


def _has_detour(tape: Tape, first: int, last: int, takes: Sequence[int], gives: Sequence[int]) -> bool:
    """Whether an output depends on trainable weights but on no input that takes gradients.

    torch's split of a backward pass into inputs and weights finds weights on the way to an input, and misses these.
    """
    if first == 0:
        return False
    from_input = {index for index in takes if tape.values[index].requires_grad}
    from_weight: set[int] = set()
    for call in tape.calls[first:last]:
        made = {index for _, index in call.outputs} | set(call.writes)
        if any(index in from_input for index in call.uses):
            from_input |= made
        elif any(
            index in from_weight or (tape.values[index].kind == "weight" and tape.values[index].requires_grad)
            for index in call.uses
        ):
            from_weight |= made
    return any(index in from_weight and index not in from_input for index in gives)


_CURE = "Keep it inside of a module that lies in one stage, or use -D runconfig.execution=resident."
_COMPARED = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")


def check_steps(programs: Sequence[Program]) -> None:
    """Refuses calls that cannot be repeated: they change objects outside of every stage, or hook into gradients."""
    for program in programs:
        for step in program.steps:
            if isinstance(step.target, nn.Module):
                continue
            if any(program.tape.values[index].kind == "constant" for index in step.writes):
                raise UserError(
                    f"{step.label} changes a tensor that is neither a parameter nor a buffer, and not made in the step.",
                    _CURE,
                )
            if getattr(step.target, "__name__", "") in _HOOKS:
                raise UserError(
                    f"{step.label} sets a hook on a gradient, which may be summed elsewhere.", _CURE
                )


def check_weights(tape: Tape) -> list[str]:
    """Refuses training steps that write to a parameter; the buffers that they write to."""
    named = {value.storage: value for value in tape.values if value.kind == "weight"}
    buffers = []
    for call in tape.calls:
        for index in call.writes:
            weight = named.get(tape.values[index].storage)
            if weight is None:
                continue
            if weight.requires_grad:
                raise UserError(
                    f"{call.line} changes parameter '{weight.name}' in the forward pass, which micro-batches would do "
                    "once each.",
                    "Do it once a step, or use -D runconfig.execution=resident.",
                )
            buffers.append(weight.name)
    return list(dict.fromkeys(buffers))


def check_same(first: Sequence[Program], second: Sequence[Program]) -> None:
    """Refuses a model of which two traces of one batch differ: a counter, a clock or a generator is behind it."""
    for one, other in zip(first, second, strict=True):
        for step, again in zip(one.steps, other.steps, strict=False):
            if _looks(step) != _looks(again):
                raise _changes(step)
        if len(one.steps) != len(other.steps):
            raise _changes(min(one, other, key=lambda program: len(program.steps)).steps[-1])
        for (index, tensor), (_, later) in zip(one._constants, other._constants, strict=False):
            if tensor is not later and not _same(tensor, later):
                raise _changes(next(step for step in one.steps if index in step.used()))


def _changes(step: Step) -> UserError:
    return UserError(
        f"{step.label} computes with another value each time (a counter, a clock or a generator that is not torch's), "
        "and a model that is cut into stages has its Python run once for all steps.",
        _CURE,
    )


def _looks(step: Step) -> tuple[Any, ...]:
    target = step.target if isinstance(step.target, nn.Module) else getattr(step.target, "__name__", "")
    return target, [_look(leaf) for leaf in pytree.tree_leaves((step.args, step.kwargs))]


def _look(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.shape, str(leaf.dtype), leaf.tobytes()
    if isinstance(leaf, _COMPARED):
        return repr(leaf)  # as text, nan equals nan
    if isinstance(leaf, slice):
        return repr(leaf)
    return type(leaf).__name__, getattr(leaf, "index", None) if type(leaf).__name__ == "Ref" else None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other)) or bool(((one == other) | ((one != one) & (other != other))).all())
