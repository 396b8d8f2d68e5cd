"""Replays a planned step as one module, which can be moved to another device."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UnsupportedError
from portwright.verify.step_plan import StepPlan
from portwright.verify.tape import Entry
from portwright.verify.tensor_trees import iter_read_numbers, iter_tensors, replace_tensors
from portwright.watching.place import Place

_PLAIN = re.compile(r"\W+")


class ReplayedStep(nn.Module):
    """Takes what the loader feeds, and returns the tensors to call backward on, with their gradients.

    It holds the script's own modules, not copies, so moving it moves them.
    """

    def __init__(self, plan: StepPlan, names: Sequence[str] = ()) -> None:
        super().__init__()
        self._plan = [plan]  # in a list, so that torch registers nothing of it
        for place, module in enumerate(plan.modules):
            name = names[place] if place < len(names) else type(module).__name__
            self.add_module(self._free_name(name), module)
        for place, tensor in enumerate(plan.constants):
            self.register_buffer(f"constant_{place}", tensor.detach())
        for place, tensor in enumerate(plan.parameters):
            self.register_parameter(f"parameter_{place}", _as_parameter(tensor))
        self._paths: dict[int, str] = {}
        self._kept: list[Tensor] = []  # keeps the ids of these tensors from being reused
        for tensor, path in self._state():
            self._paths.setdefault(id(tensor), path)
            self._kept.append(tensor)
        for place, tensor in enumerate(plan.constants):
            self._paths[id(tensor)] = f"constant_{place}"
        for place, tensor in enumerate(plan.parameters):
            self._paths[id(tensor)] = f"parameter_{place}"

    def _free_name(self, name: str) -> str:
        plain = _PLAIN.sub("_", name) or "module"
        number, free = 1, plain
        while hasattr(self, free):
            number += 1
            free = f"{plain}_{number}"
        return free

    def _state(self) -> Iterator[tuple[Tensor, str]]:
        for path, parameter in self.named_parameters(remove_duplicate=False):
            yield parameter, path
        for path, buffer in self.named_buffers(remove_duplicate=False):
            yield buffer, path

    def current(self) -> dict[int, Tensor]:
        """The current tensors of the script's modules, by the id of the originals."""
        now = {path: tensor for tensor, path in self._state()}
        return {identity: now[path] for identity, path in self._paths.items() if path in now}

    def forward(self, *fed: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        plan = self._plan[0]
        values = self.current()
        values.update((id(tensor), given) for tensor, given in zip(plan.fed, fed, strict=True))

        def now(tensor: Tensor) -> Tensor:
            return values.get(id(tensor), tensor)

        for entry in plan.entries:
            for number in iter_read_numbers((entry.args, dict(entry.kwargs))):
                call_from(number.place, Tensor.item, (now(number.source),), {})
            args = replace_tensors(entry.args, now)
            kwargs = replace_tensors(dict(entry.kwargs), now)
            with torch.set_grad_enabled(entry.with_grad), _modes(entry):
                result = call_from(entry.place, _find(entry), args, kwargs)
            outputs = list(iter_tensors(result))
            if len(outputs) != len(entry.outputs):
                raise UnsupportedError(
                    f"{entry.name} gave {len(outputs)} tensors where the script got {len(entry.outputs)}.", ""
                )
            values.update((id(old), new) for old, new in zip(entry.outputs, outputs, strict=True))
        return [
            (now(tensor), None if gradient is None else now(gradient))
            for backward in plan.backwards
            for tensor, gradient in zip(backward.tensors, backward.grad_tensors, strict=True)
        ]


def _as_parameter(tensor: Tensor) -> nn.Parameter:
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)


@contextmanager
def _modes(entry: Entry) -> Iterator[None]:
    """Sets each part to the training mode that it had when the script called it."""
    before = [(part, part.training) for part, _ in entry.training]
    for part, training in entry.training:
        part.training = training
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _find(entry: Entry) -> Callable[..., Any]:
    """Looks a torch function up again, since a vendor may have replaced it."""
    if entry.module is not None or not entry.name.startswith("torch."):
        return entry.call
    found: Any = importlib.import_module("torch")
    for part in entry.name.split(".")[1:]:
        found = getattr(found, part, None)
        if found is None:
            return entry.call
    return found if callable(found) else entry.call


_CALLERS: dict[tuple[str, int, str], Callable[..., Any]] = {}


def call_from(place: Place | None, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function from a frame with the script's file and line, which a vendor's compiler reads from the stack."""
    if place is None:
        return function(*args, **kwargs)
    key = place.file, place.line, place.function
    caller = _CALLERS.get(key)
    if caller is None:
        caller = _CALLERS[key] = _make_caller(*key)
    return caller(function, args, kwargs)


def _make_caller(file: str, line: int, name: str) -> Callable[..., Any]:
    source = "\n" * (line - 1) + "def caller(function, args, kwargs): return function(*args, **kwargs)"
    module = compile(source, file, "exec")
    code = next(part for part in module.co_consts if isinstance(part, CodeType))
    return FunctionType(code.replace(co_name=name.rpartition(".")[2] or name), {})
