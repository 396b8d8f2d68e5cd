"""Where the weights of a streamed model live: memory is reserved first, then the layers move there one by one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from portwright.job.execution import StreamingSection
from portwright.runtime.streaming.host_store import HostStore, Kind
from portwright.runtime.streaming.unit import ALIGN_BYTES, Unit, dense_stride


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
        start += _aligned(size)
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
    return sum(_aligned(entry.master.nbytes) for entry in unit.entries)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _repoint(master: nn.Parameter, view: Tensor) -> None:
    view.copy_(master.data)
    master.data = view
