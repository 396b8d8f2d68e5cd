"""One layer's part of the optimizer, stepped by itself: Adam in one native pass over flat host memory, or any optimizer of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portwright.errors import UnsupportedError, UserError
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.native.adam import NativeAdam, usable_cores
from portwright.runtime.streaming.unit import Unit, aligned, dense_stride
from portwright.runtime.streaming.updates import Rates
from portwright.runtime.world import read_launch


def is_native(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the native pass computes what this optimizer would."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return False
    return not any(
        group.get("amsgrad")
        or group.get("maximize")
        or group.get("differentiable")
        or isinstance(group["lr"], Tensor)
        or isinstance(group["betas"][0], Tensor)
        for group in optimizer.param_groups
    )


def bind_to_own_cores(native: NativeAdam, note: Callable[[str], None]) -> None:
    """Several processes on one machine: each keeps to its part of the cores, neighbours of one socket as far as possible.

    Under SLURM a task has been given cores already.
    """
    launch = read_launch()
    cores = usable_cores()
    share = len(cores) // launch.local_world_size
    if launch.source != "torchrun" or launch.local_world_size == 1 or share < 2:
        return
    first = launch.local_rank * share
    try:
        native.bind_threads(cores[first : first + share])
    except UnsupportedError as error:
        note(f"streaming: {error.message}; the optimizer's threads go where the system puts them.")


class Place(NamedTuple):
    """Weight and moments of one parameter, flat, in one of the two sets of arrays."""

    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class NativeUpdate:
    """Adam or AdamW on fp32 masters; gradients come as the device made them, and the device's copy of the weight goes out.

    An undoable update writes into a second set of arrays, which takes the place of the first one when it is to stay: nothing has to be
    copied, and the first set is the undo.
    """

    def __init__(
        self,
        unit: Unit,
        optimizer: torch.optim.Optimizer,
        native: NativeAdam,
        store: HostStore,
        *,
        state_dtype: torch.dtype = torch.float32,
        undoable: bool = False,
        max_value: float | None = None,
        pin: bool = False,
    ) -> None:
        self._unit, self._optimizer, self._native, self._max_value = unit, optimizer, native, max_value
        self._store = store
        self._entries = [unit.entries[index] for index in unit.trained]
        groups = {p: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._groups = [groups[entry.master] for entry in self._entries]
        self._decoupled = type(optimizer) is torch.optim.AdamW
        sizes = [entry.master.numel() for entry in self._entries]
        self.arrays = [store.array(f"{unit.name}/{key}", num_bytes(sizes, state_dtype), "state", pin) for key in ("exp_avg", "exp_avg_sq")]  # fmt: skip
        masters = [_flat(entry.master) for entry in self._entries]
        self._sets = [
            list(map(Place, masters, *(_parts(array, sizes, state_dtype) for array in self.arrays)))
        ]
        if undoable:
            kinds = {"weight": torch.float32, "exp_avg": state_dtype, "exp_avg_sq": state_dtype}
            undo = (
                _parts(
                    store.array(f"{unit.name}/undo of {key}", num_bytes(sizes, dtype), "undo"), sizes, dtype
                )
                for key, dtype in kinds.items()
            )
            self._sets.append(list(map(Place, *undo)))
        self._current = [0] * len(self._entries)  # which set is the truth, by parameter
        self._speculated: list[int] = []

    def place(self, position: int) -> Place:
        """The flat weight and moments of one parameter."""
        self._state_of(position)
        return self._sets[self._current[position]][position]

    def device_copy(self, position: int) -> Tensor | None:
        """What uploads read of one parameter, where that is no part of the master itself."""
        return _flat(self._entries[position].view(self._unit.shadow)) if self._unit.has_own_shadow else None

    def options(self, position: int, rates: Rates) -> dict[str, Any]:
        """What the rule of one parameter's next update takes."""
        group = self._optimizer.param_groups[self._groups[position]]
        return {
            "lr": float(rates[self._groups[position]]),
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "decoupled": self._decoupled,
            "step": int(self._state_of(position)["step"]) + 1,
        }

    def count(self, positions: Iterable[int]) -> None:
        """Counts a step for parameters that were updated elsewhere, in place."""
        for position in positions:
            self._state_of(position)["step"].add_(1)

    def apply(self, grads: Mapping[int, Tensor], rates: Rates, factor: float, *, undoable: bool) -> None:
        for position, grad in grads.items():
            entry, state, options = (
                self._entries[position],
                self._state_of(position),
                self.options(position, rates),
            )
            source = self._sets[self._current[position]][position]
            target = self._sets[1 - self._current[position]][position] if undoable else source
            flat = _flat(grad)
            if self._max_value is not None:
                flat = (flat.float() * factor).clamp_(-self._max_value, self._max_value)
            own_copy = self._unit.has_own_shadow and entry.dtype != entry.master.dtype
            copy = _flat(entry.view(self._unit.shadow)) if own_copy else None
            self._native.step(
                weight=source.weight,
                exp_avg=source.exp_avg,
                exp_avg_sq=source.exp_avg_sq,
                weight_out=target.weight,
                exp_avg_out=target.exp_avg,
                exp_avg_sq_out=target.exp_avg_sq,
                grad=flat,
                half_out=copy,
                **options,
                grad_factor=1.0 if self._max_value is not None else factor,
            )
            if undoable:
                self._speculated.append(position)
            else:
                state["step"].fill_(options["step"])
            if copy is None and self._unit.has_own_shadow:
                _flat(entry.view(self._unit.shadow)).copy_(target.weight)
            if self._store.is_on_disk:
                for array in target:
                    self._store.written(array)

    def prefetch(self, positions: Iterable[int]) -> None:
        for position in positions:
            for array in self._sets[self._current[position]][position]:
                self._store.prefetch(array)

    def keep(self) -> None:
        for position in self._speculated:
            self._current[position] = 1 - self._current[position]
            self._show(position)
            self._state_of(position)["step"].add_(1)
        self._speculated = []

    def undo(self) -> None:
        self._unit.write_shadow(self._unit.trained[position] for position in self._speculated)
        self._speculated = []

    def adopt(self) -> None:
        """Takes over a state that was loaded into the optimizer; its tensors become views of the arrays."""
        for position, entry in enumerate(self._entries):
            state, place = (
                self._optimizer.state.get(entry.master),
                self._sets[self._current[position]][position],
            )
            for key, own in (("exp_avg", place.exp_avg), ("exp_avg_sq", place.exp_avg_sq)):
                if not state:
                    own.zero_()
                elif state[key].data_ptr() != own.data_ptr():
                    self._shaped(position, own).copy_(state[key])
            if state:
                self._show(position)

    def _state_of(self, position: int) -> dict[str, Any]:
        master = self._entries[position].master
        state: dict[str, Any] = self._optimizer.state[master]
        if not state:
            state["step"] = torch.tensor(0.0)
            self._show(position)
        return state

    def _show(self, position: int) -> None:
        """Makes the current set what the model and the optimizer see."""
        place, master = self._sets[self._current[position]][position], self._entries[position].master
        master.data = self._shaped(position, place.weight)
        state = self._optimizer.state[master]
        state["exp_avg"] = self._shaped(position, place.exp_avg)
        state["exp_avg_sq"] = self._shaped(position, place.exp_avg_sq)

    def _shaped(self, position: int, flat: Tensor) -> Tensor:
        master = self._entries[position].master
        return flat.as_strided(master.shape, dense_stride(master), flat.storage_offset())


def num_bytes(sizes: list[int], dtype: torch.dtype) -> int:
    """Bytes of an array with these numbers of elements, each part aligned."""
    return sum(aligned(size * dtype.itemsize) for size in sizes)


def _parts(array: Tensor, sizes: list[int], dtype: torch.dtype) -> list[Tensor]:
    parts, start = [], 0
    for size in sizes:
        parts.append(array[start : start + size * dtype.itemsize].view(dtype))
        start += aligned(size * dtype.itemsize)
    return parts


def _flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory; the tensor has no gaps."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


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
