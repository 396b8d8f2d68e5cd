"""Checks that a model's Python code does the same in every step: a stage repeats recorded calls, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from portwright.errors import UserError
from portwright.runtime.pipelined.program import Program, Step
from portwright.runtime.pipelined.tape import Tape

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
