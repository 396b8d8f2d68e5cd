"""One layer's part of a torch optimizer, stepped by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.unit import Unit, dense_stride
from portwright.runtime.streaming.updates import Rates

_WORTH_MOVING = 1 << 14  # elements
_Saved = tuple[Tensor, Tensor, dict[str, Any]]  # a weight, its values, its state


def part_of(
    optimizer: torch.optim.Optimizer, parameters: set[Tensor]
) -> tuple[torch.optim.Optimizer, list[int]]:
    """An optimizer of some of the parameters, which shares the state of the whole; and which groups it has."""
    part: torch.optim.Optimizer = object.__new__(type(optimizer))
    part.__dict__.update(optimizer.__dict__)
    groups, indexes = [], []
    for index, group in enumerate(optimizer.param_groups):
        chosen = [parameter for parameter in group["params"] if parameter in parameters]
        if chosen:
            groups.append({**{k: v for k, v in group.items() if k != "param_names"}, "params": chosen})
            indexes.append(index)
    part.param_groups = groups
    return part, indexes


def check_separable(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer that may look at all parameters at once."""
    module = type(optimizer).__module__
    if isinstance(optimizer, torch.optim.LBFGS) or not module.startswith(("torch.optim", "portwright.")):
        raise UserError(
            f"weight streaming updates layer by layer, and {type(optimizer).__name__} may need all gradients at once.",
            "Use an optimizer of params.yaml or of torch.optim (not LBFGS), or runconfig.execution: resident.",
        )


class TorchUpdate:
    """Any optimizer whose rule looks at one parameter at a time; bit for bit what it would do to the whole model."""

    def __init__(
        self,
        unit: Unit,
        optimizer: torch.optim.Optimizer,
        store: HostStore,
        max_value: float | None = None,
    ) -> None:
        self._unit, self._store, self._max_value = unit, store, max_value
        self._masters = [unit.entries[index].master for index in unit.trained]
        self._optimizer, self._groups = part_of(optimizer, set(self._masters))
        self._saved: list[_Saved] = []
        self._moved: set[int] = set()  # addresses of states that are on the disk

    def apply(self, grads: Mapping[int, Tensor], rates: Rates, factor: float, *, undoable: bool) -> None:
        chosen = [self._masters[position] for position in grads]
        if undoable:
            self._saved += [
                (master, master.detach().clone(), _copied(self._optimizer.state.get(master, {})))
                for master in chosen
            ]
        for group, index in zip(self._optimizer.param_groups, self._groups, strict=True):
            group["lr"] = rates[index]
        for master, grad in zip(chosen, grads.values(), strict=True):
            whole = grad if grad.dtype == master.dtype else grad.to(master.dtype)
            whole = whole if factor == 1.0 else whole * factor
            master.grad = whole if self._max_value is None else whole.clamp(-self._max_value, self._max_value)
        try:
            self._optimizer.step()
        finally:
            for master in chosen:
                master.grad = None
        self._unit.write_shadow(self._unit.trained[position] for position in grads)
        if self._store.is_on_disk:
            for master in chosen:
                self._move_state(master)

    def _move_state(self, master: Tensor) -> None:
        """Moves state that the optimizer has made in memory to the disk, and begins to write it."""
        for key, value in self._optimizer.state[master].items():
            if not isinstance(value, Tensor) or value.numel() < _WORTH_MOVING:
                continue
            if value.data_ptr() not in self._moved:
                flat = self._store.array(f"{self._unit.name}/{key}", value.nbytes, "state").view(value.dtype)
                moved = flat.as_strided(value.shape, dense_stride(value))
                self._optimizer.state[master][key] = value = moved.copy_(value)
                self._moved.add(value.data_ptr())
            self._store.written(value)

    def prefetch(self, positions: Iterable[int]) -> None:
        for position in positions:
            for value in self._optimizer.state.get(self._masters[position], {}).values():
                if isinstance(value, Tensor) and value.data_ptr() in self._moved:
                    self._store.prefetch(value)

    def keep(self) -> None:
        self._saved = []

    def adopt(self) -> None:
        """The state is the optimizer's own."""

    def count(self, positions: Iterable[int]) -> None:
        raise TypeError("torch's optimizers update on the host")

    def undo(self) -> None:
        state = self._optimizer.state
        for master, values, kept in self._saved:
            master.data.copy_(values)
            now = state.get(master, {})
            if not kept:
                state.pop(master, None)
                continue
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    now[key].copy_(value)
                else:
                    now[key] = value
        self._saved = []
        self._unit.write_shadow()


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
