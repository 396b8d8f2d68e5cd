"""How fast a streamed step can be: a small simulation of device, bus, CPU optimizer and disk, layer by layer.

Of a layer with P weights, computing forward takes F operations and sending it 2 P or 4 P bytes; in the backward pass it is sent
again, recomputed, and its gradient comes back, after which the CPU updates it. All four overlap, as far as each layer's own order
allows, and the slowest of them is what bounds a step.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Bound = Literal["compute", "bus", "CPU optimizer", "disk", "pipeline bubble"]

_NUM_STEPS = (
    4  # simulated, of which the last counts: by then each step meets the weights as the one before left them
)


@dataclass(frozen=True)
class Rates:
    """What a machine sustains; `sources` says where each figure is from."""

    flops_per_second: float
    bus_bytes_per_second: float  # each way
    host_bytes_per_second: float  # of memory, read and written by the CPU's update
    disk_bytes_per_second: float | None = None  # where weights and state live on one
    sources: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class StreamedLayer:
    """One layer of a streamed step; operations are of the whole batch."""

    forward_flops: float
    backward_flops: float
    sent_bytes: int  # its weights as the device gets them
    gradient_bytes: int  # as the host gets them; 0: it is not trained
    update_bytes: int  # that the CPU reads and writes to update it
    disk_bytes: int = 0  # read and written, where it lives on a disk


@dataclass(frozen=True)
class Expected:
    """An estimate of a mode's speed."""

    share: float  # of resident speed
    bound: Bound
    step_seconds: float | None = None
    busy_seconds: Mapping[Bound, float] | None = None  # a step, of each part

    def as_json(self) -> dict[str, Any]:
        return {"estimated": True, **{name: value for name, value in vars(self).items() if value is not None}}


def expect_streaming(
    layers: Sequence[StreamedLayer],
    rest_flops: float,
    rates: Rates,
    *,
    slots: int,
    trains: bool,
    shares_cores: bool = False,
) -> Expected:
    """The speed of a streamed step against the same step, recomputing included, with everything resident.

    `shares_cores`: the device is the CPU itself, so that nothing overlaps.
    """
    forward = sum(layer.forward_flops for layer in layers)
    backward = sum(layer.backward_flops for layer in layers) if trains else 0.0
    recompute = forward if trains else 0.0
    compute = (forward + backward + recompute + rest_flops) / rates.flops_per_second
    sent = sum(layer.sent_bytes for layer in layers)
    up = sent * (2 if trains else 1)
    down = sum(layer.gradient_bytes for layer in layers) if trains else 0
    updated = sum(layer.update_bytes for layer in layers) if trains else 0
    on_disk = sum(layer.disk_bytes for layer in layers)
    update = updated / rates.host_bytes_per_second
    disk = on_disk / rates.disk_bytes_per_second if rates.disk_bytes_per_second else 0.0
    if shares_cores:
        copies = 2 * (up + down) / rates.host_bytes_per_second
        step = max(compute + update + copies, disk)
        busy: dict[Bound, float] = {"compute": compute, "bus": copies, "CPU optimizer": update, "disk": disk}
        resident = (forward + backward + rest_flops) / rates.flops_per_second + update
        return Expected(min(1.0, resident / step) if step else 1.0, _slowest(busy), step, busy)
    # The bus reads and writes host memory beside the CPU's update: together they cannot exceed it.
    host = (up + down + updated) / rates.host_bytes_per_second
    busy = {
        "compute": compute,
        "bus": max(up, down) / rates.bus_bytes_per_second,
        "CPU optimizer": max(update, host) if trains else 0.0,
        "disk": disk,
    }
    simulated = _simulate(layers, rest_flops, rates, slots, trains)
    step = max(simulated, *busy.values())
    return Expected(compute / step if step else 1.0, _slowest(busy), step, busy)


def update_on_device(layers: Sequence[StreamedLayer], share: float) -> list[StreamedLayer]:
    """The same layers, a share of which is updated on the device: weights and state pass over the bus, the gradient stays."""
    moved: list[StreamedLayer] = []
    for index, layer in enumerate(layers):
        is_chosen = int((index + 1) * share) > int(index * share) and layer.update_bytes > 0
        half = layer.update_bytes // 2  # as much is read as is written
        moved.append(
            # Sent weights count in both passes, the state in one.
            replace(layer, sent_bytes=layer.sent_bytes + half // 2, gradient_bytes=half, update_bytes=0)
            if is_chosen
            else layer
        )
    return moved


def expect_pipelining(num_stages: int, num_micro_batches: int) -> Expected:
    """Of a pipeline whose stages take equally long: the rest is the bubble at its ends."""
    share = num_micro_batches / (num_micro_batches + num_stages - 1)
    return Expected(share, "compute" if num_stages == 1 else "pipeline bubble")


def _slowest(busy: Mapping[Bound, float]) -> Bound:
    return max(busy, key=lambda part: busy[part])


class _Device:
    """The device and its way up: when each layer's call begins and ends."""

    def __init__(self, slots: int, rates: Rates) -> None:
        self.now = self._bus_free = 0.0
        self._rates, self._slots = rates, slots
        self._held: list[int] = []  # layers whose weights are on the device, the latest last
        self._released: list[float] = []  # when each call ended, in order

    def call(self, index: int, layer: StreamedLayer, flops: float, ready: float) -> None:
        if index in self._held:
            self._held.remove(index)
        else:
            # A slot is free once the call is done that came `slots` calls before.
            freed = self._released[-self._slots] if len(self._released) >= self._slots else 0.0
            self._bus_free = (
                max(self._bus_free, ready, freed) + layer.sent_bytes / self._rates.bus_bytes_per_second
            )
            self.now = max(self.now, self._bus_free)
        self._held = [*self._held, index][-self._slots :]
        self.now += flops / self._rates.flops_per_second
        self._released.append(self.now)


def _simulate(
    layers: Sequence[StreamedLayer], rest_flops: float, rates: Rates, slots: int, trains: bool
) -> float:
    device, ready = _Device(slots, rates), [0.0] * len(layers)
    down_free = cpu_free = begun = 0.0
    for _ in range(_NUM_STEPS):
        begun = device.now
        for index, layer in enumerate(layers):
            device.call(index, layer, layer.forward_flops, ready[index])
        device.now += rest_flops / rates.flops_per_second
        if not trains:
            continue
        arrivals: list[tuple[float, int]] = []
        for index in reversed(range(len(layers))):
            layer = layers[index]
            device.call(index, layer, layer.forward_flops + layer.backward_flops, ready[index])
            if layer.gradient_bytes:
                down_free = max(down_free, device.now) + layer.gradient_bytes / rates.bus_bytes_per_second
                arrivals.append((down_free, index))
        cpu_free = _update(layers, arrivals, rates, cpu_free, ready)
    return device.now - begun


def _update(
    layers: Sequence[StreamedLayer],
    arrivals: list[tuple[float, int]],
    rates: Rates,
    free: float,
    ready: list[float],
) -> float:
    """The CPU takes, of the gradients that have arrived, that of the lowest layer: the next step begins with it."""
    waiting: list[int] = []
    position = 0
    while position < len(arrivals) or waiting:
        if not waiting:
            free = max(free, arrivals[position][0])
        while position < len(arrivals) and arrivals[position][0] <= free:
            heapq.heappush(waiting, arrivals[position][1])
            position += 1
        index = heapq.heappop(waiting)
        seconds = layers[index].update_bytes / rates.host_bytes_per_second
        if rates.disk_bytes_per_second:
            seconds = max(seconds, layers[index].disk_bytes / rates.disk_bytes_per_second)
        free += seconds
        ready[index] = free
    return free
