"""One streamed layer: where its weights lie in flat memory, how they get there, and how they come and go."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.streaming.host_store import HostStore, Kind
from portwright.runtime.streaming.recompute import Memory

ALIGN_BYTES = 256  # of a tensor in a slot; what CUDA's copies and kernels like

# Modules whose matrices autocast hands to a product in the lower precision, whatever else happens.
_PRODUCTS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
_PRODUCT_NAMES = frozenset({"Conv1D"})  # of HuggingFace's GPT-2: a Linear with its matrix turned
# Of those modules; weight_norm's `weight_v` and the like are worked on in full precision before they become a weight.
_PRODUCT_ATTRIBUTES = frozenset(
    {"weight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
)


@dataclass(frozen=True)
class Entry:
    """One weight of a layer, as it lies in a slot."""

    name: str  # canonical
    owners: tuple[tuple[nn.Module, str], ...]  # modules and attributes under which the layer has it
    master: nn.Parameter
    dtype: torch.dtype  # on the device
    start: int  # byte in a slot
    stride: tuple[int, ...]  # without gaps, in the master's own order of dimensions

    @property
    def num_bytes(self) -> int:
        return self.master.numel() * self.dtype.itemsize

    def view(self, flat: Tensor) -> Tensor:
        """This weight's part of a slot's bytes."""
        part = flat[self.start : self.start + self.num_bytes].view(self.dtype)
        return part.as_strided(self.master.shape, self.stride)


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """Strides without gaps in the tensor's own order of dimensions, such as channels_last."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()


def slot_dtype(
    owner: nn.Module, master: Tensor, half: torch.dtype | None, attribute: str = "weight"
) -> torch.dtype:
    """A weight's dtype on the device: that of autocast, where autocast surely converts the weight; else its own."""
    is_product = isinstance(owner, _PRODUCTS) or type(owner).__name__ in _PRODUCT_NAMES
    is_product = is_product and attribute in _PRODUCT_ATTRIBUTES
    if half is not None and is_product and master.ndim >= 2 and master.dtype is torch.float32:
        return half
    return master.dtype


class Unit:
    """A layer whose weights are in host memory, and on the device only while it is used.

    The masters stay the module's parameters. For a call, `lent` puts stand-ins in their place: leaves on the device whose
    data are views of a slot.
    """

    def __init__(
        self,
        index: int,
        name: str,
        module: nn.Module,
        entries: list[Entry],
        device: torch.device,
        changed: threading.Condition,
    ) -> None:
        self.index, self.name, self.module, self.entries = index, name, module, entries
        self.host: Unit = (
            self  # where masters, state and shadow are; several processes have a part of them each
        )
        last = entries[-1]
        self.num_bytes = aligned(last.start + last.num_bytes)
        self.stand_ins = [
            nn.Parameter(torch.empty(0, dtype=e.dtype, device=device), requires_grad=e.master.requires_grad)
            for e in entries
        ]
        self.trained = [i for i, e in enumerate(entries) if e.master.requires_grad]
        self.shadow: Tensor = torch.empty(0)  # host bytes in a slot's layout, the source of uploads
        self.has_own_shadow = any(e.dtype != e.master.dtype for e in entries)  # else the masters lie in it
        self.memory = Memory(name, module)
        self.wanted_version = 0  # updates asked for
        self.failure: BaseException | None = None  # of an update; raised where the layer is used
        self._version = 0  # updates done
        self._changed = changed

    def bind(self, flat: Tensor) -> None:
        for entry, stand_in in zip(self.entries, self.stand_ins, strict=True):
            stand_in.data = entry.view(flat)

    def take_hooks(self) -> None:
        """Moves hooks that a user has registered on a weight's gradient to its stand-in."""
        for entry, stand_in in zip(self.entries, self.stand_ins, strict=True):
            if getattr(entry.master, "_post_accumulate_grad_hooks", None):
                raise UserError(
                    f"the weight '{entry.name}' has a hook that runs when its gradient is whole, which a streamed weight has no place for.",
                    "Remove the hook, leave the layer out of runconfig.streaming.layers, or use runconfig.execution: resident.",
                )
            for hook in (getattr(entry.master, "_backward_hooks", None) or {}).values():
                stand_in.register_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The stand-ins in the masters' places; one whose master was frozen meanwhile is frozen too."""
        for index in self.trained:
            self.stand_ins[index].requires_grad_(self.entries[index].master.requires_grad)
        for entry, stand_in in zip(self.entries, self.stand_ins, strict=True):
            for owner, attribute in entry.owners:
                owner._parameters[attribute] = stand_in
        try:
            yield
        finally:
            for entry in self.entries:
                for owner, attribute in entry.owners:
                    owner._parameters[attribute] = entry.master

    def write_shadow(self, indexes: Iterable[int] | None = None) -> None:
        """Copies the values of some masters, or all, to the memory that the next upload reads."""
        if self.has_own_shadow:
            with torch.no_grad():
                for entry in self.entries if indexes is None else [self.entries[index] for index in indexes]:
                    entry.view(self.shadow).copy_(entry.master)

    def updated(self, version: int) -> None:
        """The host has the weights of this version."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def wait_updated(self) -> None:
        """Returns when the host has the newest weights that were asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self.has(self.wanted_version))
            if self.failure is not None:
                raise self.failure

    def has(self, version: int) -> bool:
        """Whether the host has the weights of this version, or never will."""
        return self._version >= version or self.failure is not None


def make_units(
    layers: list[tuple[str, nn.Module]],
    net: nn.Module,
    device: torch.device,
    half: torch.dtype | None,
    changed: threading.Condition,
) -> list[Unit]:
    """Units of the layers; a weight that several layers share, or that is used outside them too, is left to the rest."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    users = _users(net, layers)
    units: list[Unit] = []
    for name, module in layers:
        entries: list[Entry] = []
        start = 0
        for parameter, owners in _parameters_of(module).items():
            if len(users[parameter]) > 1 or parameter.numel() == 0:
                continue
            dtype = slot_dtype(owners[0][0], parameter, half, owners[0][1])
            stride = dense_stride(parameter)
            entries.append(Entry(names[parameter], tuple(owners), parameter, dtype, start, stride))
            start += aligned(entries[-1].num_bytes)
        if entries:
            units.append(Unit(len(units), name, module, entries, device, changed))
    return units


def _parameters_of(module: nn.Module) -> dict[nn.Parameter, list[tuple[nn.Module, str]]]:
    found: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for attribute, parameter in owner._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((owner, attribute))
    return found


def _users(net: nn.Module, layers: list[tuple[str, nn.Module]]) -> Mapping[nn.Parameter, set[Any]]:
    """The layers that hold each weight; None stands for modules outside all layers."""
    layer_of = {owner: name for name, module in layers for owner in module.modules()}
    users: dict[nn.Parameter, set[Any]] = {}
    for owner in net.modules():
        for parameter in owner._parameters.values():
            if parameter is not None:
                users.setdefault(parameter, set()).add(layer_of.get(owner))
    return users


def plan_weights(store: HostStore, hosts: Sequence[Unit]) -> None:
    """Plans host memory: a layer's own tensors are freed as its arrays are made, so that only one layer is there twice."""
    shadows = sum(host.num_bytes for host in hosts if host.has_own_shadow)
    store.plan({"weights": shadows, "state": max(_master_bytes(host) for host in hosts)})


def plan_training(
    store: HostStore,
    masters: Sequence[Tensor],
    gradient_bytes: int,
    state_bytes: int,
    *,
    speculates: bool,
    is_native: bool,
) -> bool:
    """Asks for all that the optimizer will take before the first of it is made; whether steps may speculate."""
    needed: dict[Kind, int] = {"state": state_bytes, "gradients": gradient_bytes}
    if speculates:
        # Torch's optimizers are undone from copies, which are in memory wherever the state is.
        kind: Kind = "undo" if is_native else "gradients"
        undo = sum(master.nbytes for master in masters) + state_bytes
        with_undo = {**needed, kind: needed.get(kind, 0) + undo}
        speculates = store.has_room(with_undo)
        needed = with_undo if speculates else needed
    store.plan(needed)
    return speculates


def updated_on_device(
    units: Sequence[Unit], options: StreamingSection, is_cuda: bool, half: torch.dtype | None
) -> set[Unit]:
    """Every n-th layer from the first on: the last gradient of a step is the first layer's, and the bus has a pause after each."""
    share = options.share_on_device(is_cuda and half is not None)
    if not share:
        return set()
    return {units[int(number / share)] for number in range(max(1, int(len(units) * share)))}


def move_to_store(unit: Unit, store: HostStore, pin: bool) -> None:
    """The masters become views of a flat array; where the device wants other types, a shadow has these."""
    unit.shadow = store.array(f"{unit.name} on the device", unit.num_bytes, "weights")
    if not unit.has_own_shadow:
        for entry in unit.entries:
            _repoint(entry.master, entry.view(unit.shadow))
        return
    flat = store.array(unit.name, _master_bytes(unit), "state", pin)
    start = 0
    for entry in unit.entries:
        size = entry.master.nbytes
        part = flat[start : start + size].view(entry.master.dtype)
        _repoint(entry.master, part.as_strided(entry.master.shape, dense_stride(entry.master)))
        start += aligned(size)
    unit.write_shadow()


def move_rest(net: nn.Module, device: torch.device, streamed: Collection[nn.Parameter]) -> None:
    """Moves weights outside the layers, and all buffers, to the device."""
    for module in net.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter not in streamed:
                parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _master_bytes(unit: Unit) -> int:
    return sum(aligned(entry.master.nbytes) for entry in unit.entries)


def _repoint(master: nn.Parameter, view: Tensor) -> None:
    view.copy_(master.data)
    master.data = view
