"""Finds the training step on a tape, and where each of its input tensors comes from.

A tensor is fed by a loader, captured as a constant, or part of the model. A vendor's loader needs one first dimension for
all that it feeds, so a tensor with another one that stays the same in each step, such as a mask, is captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError
from portwright.verify.tape import Backward, Entry, Tape, memory_of, state_of


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One update's forward and backward passes, ready to be replayed."""

    entries: tuple[Entry, ...]
    backwards: tuple[Backward, ...]
    modules: tuple[nn.Module, ...]
    fed: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]  # trained, and in no module that is called
    batch_size: int | None
    # first use of each constant: name of the entry, number of the input
    constant_uses: tuple[tuple[str, int], ...] = ()
    doubtful: tuple[int, ...] = ()  # indices of constants that may be data
    notes: tuple[str, ...] = ()


def plan_step(tape: Tape, trained: Iterable[Tensor] = (), *, captures_odd: bool = False) -> StepPlan:
    """Plans the entries that the backward passes need, and their inputs; `trained` are the optimizer's parameters.

    `captures_odd` also captures tensors from a loader that have another first dimension than the rest.
    """
    if not tape.backwards:
        raise UnsupportedError("the script updated its weights without a backward pass.")
    trained = list(trained)
    state = state_of(tape.modules) | tape.trained | {id(tensor): tensor for tensor in trained}
    backwards, entries, notes = _distinct(tape, state)
    batch_size = _batch_size(tape, entries, state)
    modules = _called(tape, entries)
    leaves = _leaves(entries, backwards)
    own = state_of(modules)
    fed: list[Tensor] = []
    constants: list[Tensor] = []
    doubtful: list[int] = []
    parameters = [tensor for tensor in trained if id(tensor) not in own]
    known = {id(tensor) for tensor in parameters}
    for leaf in leaves:
        if id(leaf) in own or id(leaf) in known:
            continue
        if leaf.requires_grad and not leaf.is_leaf and leaf not in tape.carried:
            raise UnsupportedError(
                f"the loss depends on a tensor of shape {tuple(leaf.shape)} ({leaf.grad_fn}) that was computed where torch does not "
                "show it, such as in a scripted function.",
                "Compute it in a module, or without torch.jit.",
            )
        is_odd = not leaf.dim() or leaf.shape[0] != batch_size
        if id(leaf) in tape.fetched and not (is_odd and captures_odd):
            fed.append(leaf)
        elif leaf.requires_grad and leaf.is_leaf:
            parameters.append(leaf)
        elif leaf in tape.carried:
            constants.append(leaf)
            notes.append("a tensor that the step before left, such as a hidden state, taken as a constant")
        elif not is_odd:
            fed.append(leaf)
        else:
            constants.append(leaf)
            if leaf.dim() and not captures_odd:
                doubtful.append(len(constants) - 1)
    return StepPlan(
        tuple(entries),
        tuple(backwards),
        tuple(modules),
        tuple(fed),
        tuple(constants),
        tuple(parameters),
        batch_size,
        tuple(_use_of(tensor, entries) for tensor in constants),
        tuple(doubtful),
        tuple(dict.fromkeys(notes)),
    )


def feed_what_changes(plan: StepPlan, kept: Sequence[Tensor], later: StepPlan) -> StepPlan:
    """Feeds the doubtful constants whose values differ in a later step; `kept` has their values in this one."""
    values = dict(zip(later.constant_uses, later.constants, strict=True))
    changed = [
        place
        for place, before in zip(plan.doubtful, kept, strict=True)
        if plan.constant_uses[place] in values and not _same(values[plan.constant_uses[place]], before)
    ]
    if not changed:
        return plan
    stay = [place for place in range(len(plan.constants)) if place not in changed]
    note = "tensors that change from step to step are fed by the loader, whatever their first dimension"
    return replace(
        plan,
        fed=(*plan.fed, *(plan.constants[place] for place in changed)),
        constants=tuple(plan.constants[place] for place in stay),
        constant_uses=tuple(plan.constant_uses[place] for place in stay),
        doubtful=(),
        notes=(*plan.notes, note),
    )


def _use_of(tensor: Tensor, entries: Sequence[Entry]) -> tuple[str, int]:
    for entry in entries:
        for place, given in enumerate(entry.inputs):
            if given is tensor:
                return entry.name, place
    return "backward", 0


def _same(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype or left.layout != right.layout:
        return False
    if left.layout is not torch.strided:  # torch.equal needs dense tensors
        left, right = left.to_dense(), right.to_dense()
    return bool(torch.equal(left, right))


def _distinct(tape: Tape, state: dict[int, Tensor]) -> tuple[list[Backward], list[Entry], list[str]]:
    """Backward passes that differ, and their entries: repeated passes that accumulate gradients count once."""
    seen: dict[tuple[str, ...], int] = {}
    backwards: list[Backward] = []
    kept: dict[int, Entry] = {}
    for backward in tape.backwards:
        own = _own_entries(tape, backward, state)
        signature = tuple(entry.name for entry in own)
        seen[signature] = seen.get(signature, 0) + 1
        if seen[signature] == 1:
            backwards.append(backward)
            kept.update((id(entry), entry) for entry in own)
    most = max(seen.values())
    notes = [f"{most} like backward passes before the update: one of them"] if most > 1 else []
    return backwards, [entry for entry in tape.entries if id(entry) in kept], notes


def _own_entries(tape: Tape, backward: Backward, state: dict[int, Tensor]) -> list[Entry]:
    entries = [
        tape.entries[index] for index in _needed(tape.entries[: backward.num_entries], backward, state)
    ]
    return _without_preparation(tape, entries, state, _batch_size(tape, entries, state))


def _needed(entries: Sequence[Entry], backward: Backward, state: dict[int, Tensor]) -> list[int]:
    """Indices of the entries that a backward pass depends on, with those that write into a tensor that is read later."""
    tensors = [*backward.tensors, *(t for t in backward.grad_tensors if t is not None)]
    wanted = {id(tensor) for tensor in tensors}
    memory = {memory_of(tensor) for tensor in tensors}
    found: list[int] = []
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        written = any(memory_of(t) in memory for t in entry.written if id(t) not in state)
        is_setter = entry.name.endswith("__set__") and any(id(t) in wanted for t in entry.inputs)
        makes = any(id(output) in wanted and id(output) not in state for output in entry.outputs)
        if not (written or is_setter or makes):
            continue
        found.append(index)
        for tensor in entry.inputs:
            wanted.add(id(tensor))
            if id(tensor) not in state:
                memory.add(memory_of(tensor))
    return found[::-1]


def _batch_size(tape: Tape, entries: Sequence[Entry], state: dict[int, Tensor]) -> int | None:
    """The first dimension of what the loader gave; without one, that of the first module's first tensor."""
    inputs = [t for entry in entries for t in entry.inputs if id(t) not in state and t.dim()]
    from_loader = next((t for t in inputs if id(t) in tape.fetched), None)
    if from_loader is not None:
        return from_loader.shape[0]
    modules = [entry for entry in entries if entry.module is not None]
    for entry in sorted(modules, key=lambda entry: not any(o.requires_grad for o in entry.outputs)):
        for tensor in entry.inputs:
            if tensor.dim() and id(tensor) not in state:
                return tensor.shape[0]
    return inputs[0].shape[0] if inputs else None


def _without_preparation(
    tape: Tape, entries: Sequence[Entry], state: dict[int, Tensor], batch_size: int | None
) -> list[Entry]:
    """Leaves out what a loader would do: taking a batch from a larger tensor, or making a tensor on the host."""
    depends = {*state, *tape.fetched}
    prepared: set[int] = set()
    kept: list[Entry] = []
    for entry in entries:
        inputs = entry.inputs
        is_own = entry.module is not None or any(
            id(t) in depends or t.requires_grad or t in tape.carried for t in inputs
        )
        if is_own:
            depends.update(id(t) for t in (*entry.outputs, *entry.written))
        elif any(id(t) in prepared or (t.dim() and t.shape[0] != batch_size) for t in inputs) or (
            not inputs and entry.kwargs.get("device") is None
        ):
            prepared.update(id(t) for t in (*entry.outputs, *entry.written))
            continue
        kept.append(entry)
    return kept


def _called(tape: Tape, entries: Sequence[Entry]) -> list[nn.Module]:
    """Modules that the entries call, or that are arguments of functions that they call."""
    called = {id(entry.module) for entry in entries if entry.module is not None}
    inside = {id(module) for entry in entries if entry.module is None for module in entry_modules(entry)}
    return [module for module in tape.modules if id(module) in called | inside]


def entry_modules(entry: Entry) -> list[nn.Module]:
    """Modules among the arguments of a function, such as torch's checkpoint."""
    return [value for value in (*entry.args, *entry.kwargs.values()) if isinstance(value, nn.Module)]


def _leaves(entries: Sequence[Entry], backwards: Sequence[Backward]) -> list[Tensor]:
    """Tensors that no entry makes before they are used, in the order of their first use."""
    made: set[int] = set()
    leaves: dict[int, Tensor] = {}
    for entry in entries:
        for tensor in entry.inputs:
            if id(tensor) not in made:
                leaves.setdefault(id(tensor), tensor)
        made.update(id(tensor) for tensor in entry.outputs)
    for backward in backwards:
        for last in (*backward.tensors, *backward.grad_tensors):
            if last is not None and id(last) not in made:
                leaves.setdefault(id(last), last)
    return list(leaves.values())
