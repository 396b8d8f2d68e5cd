"""How fast a streamed step can be: a small simulation of device, bus, CPU optimizer and disk, layer by layer.

Of a layer with P weights, computing forward takes F operations and sending it 2 P or 4 P bytes; in the backward pass it is sent
again, recomputed, and its gradient comes back, after which the CPU updates it. All four overlap, as far as each layer's own order
allows, and the slowest of them is what bounds a step.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

Bound = Literal["compute", "bus", "CPU optimizer", "disk", "pipeline bubble"]
# A step's gradients may get a factor that is known only once all have come. Without one, updates begin at once; else they wait
# for it, or those already made are undone and repeated.
Verdict = Literal["none", "waited for", "repeats"]

_NUM_STEPS = (
    4  # simulated, of which the last counts: by then each step meets the weights as the one before left them
)


@dataclass(frozen=True)
class Rates:
    """What a machine sustains; `sources` says where each figure is from."""

    flops_per_second: float
    bus_bytes_per_second: float  # each way
    host_bytes_per_second: float  # of memory, read and written by the CPU's update
    disk_bytes_per_second: float | None = None  # where weights and state live on a disk
    sources: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class StreamedLayer:
    """One layer of a streamed step; operations are of the whole batch."""

    forward_flops: float
    backward_flops: float
    sent_bytes: int  # its weights in the device's type
    gradient_bytes: int  # as the host gets them; 0: it is not trained
    update_bytes: int  # that the CPU reads and writes to update it
    disk_bytes: int = 0  # read and written, where it lives on a disk


@dataclass(frozen=True)
class Expected:
    """An estimate of a mode's speed."""

    share: float  # of resident speed
    bound: Bound
    step_seconds: float | None = None
    busy_seconds: Mapping[Bound, float] | None = None  # in a step, by part of the machine
    share_if_clipped: float | None = None  # where clipping acts in every step
    not_counted: tuple[str, ...] = ()  # what is in force and not in the estimate

    def as_json(self) -> dict[str, Any]:
        return {
            "estimated": True,
            **{name: value for name, value in vars(self).items() if value not in (None, ())},
        }


def expect_streaming(
    layers: Sequence[StreamedLayer],
    rest_flops: float,
    rates: Rates,
    *,
    slots: int,
    trains: bool,
    shares_cores: bool = False,
    verdict: Verdict = "none",
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
        again = update if verdict == "repeats" else 0.0
        step = max(compute + update + again + copies, disk)
        busy: dict[Bound, float] = {"compute": compute, "bus": copies, "CPU optimizer": update, "disk": disk}
        resident = (forward + backward + rest_flops) / rates.flops_per_second + update
        return Expected(min(1.0, resident / step) if step else 1.0, _slowest(busy), step, busy)
    # Copies over the bus do not slow the update: on an H200's host both together moved more bytes than the update alone.
    busy = {
        "compute": compute,
        "bus": max(up, down) / rates.bus_bytes_per_second,
        "CPU optimizer": update,  # repeated updates count in the simulation alone
        "disk": disk,
    }
    simulated = _simulate(layers, rest_flops, rates, slots, trains, verdict)
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
    """The speed of a pipeline whose stages take equally long; only the bubble at its ends is lost."""
    share = num_micro_batches / (num_micro_batches + num_stages - 1)
    return Expected(share, "compute" if num_stages == 1 else "pipeline bubble")


def _slowest(busy: Mapping[Bound, float]) -> Bound:
    return max(busy, key=lambda part: busy[part])


class _Device:
    """The device and the copies to it: when each layer's call begins and ends."""

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
    layers: Sequence[StreamedLayer],
    rest_flops: float,
    rates: Rates,
    slots: int,
    trains: bool,
    verdict: Verdict,
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
        if verdict == "waited for":
            arrivals = [(down_free, index) for _, index in arrivals]
        cpu_free = _update(layers, arrivals, rates, cpu_free, ready, repeats=verdict == "repeats")
    return device.now - begun


def _update(
    layers: Sequence[StreamedLayer],
    arrivals: list[tuple[float, int]],
    rates: Rates,
    free: float,
    ready: list[float],
    *,
    repeats: bool,
) -> float:
    """The CPU takes, of the gradients that have arrived, that of the lowest layer: the next step begins with it.

    With `repeats`, the updates made before the last gradient came are done again.
    """
    repeated: list[tuple[int, float]] = []
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
        if repeats and free <= arrivals[-1][0]:
            repeated.append((index, seconds))
    for index, seconds in sorted(repeated):
        free = ready[index] = max(free, arrivals[-1][0]) + seconds
    return free


# The share of a square matrix product's speed that a step reaches: about this for a GPT of 3.5 billion parameters on an H200.
_STEP_SHARE_OF_PRODUCT = 0.8
_UPDATE_BYTES = 28  # an element of fused AdamW: weight and two moments read and written, gradient read
_DISK_BYTES_PER_SECOND = (
    3e9  # an NVMe drive of its day, reading and writing in turns; not measured, a store may be anywhere
)
_SOURCES = {
    "flops_per_second": f"measured: {_STEP_SHARE_OF_PRODUCT} of a square product",
    "bus_bytes_per_second": "measured: pinned copies",
    "host_bytes_per_second": "measured: torch's fused AdamW",
    "disk_bytes_per_second": "assumed: an NVMe drive",
}


def measure_rates(device: torch.device, dtype: torch.dtype, has_disk: bool) -> Rates:
    """Measures in less than a second, with tens of MiB on the device and half a GiB on the host for a moment."""
    host = _update_rate()
    bus = _bus_rate(device) if device.type != "cpu" else host / 2
    disk = _DISK_BYTES_PER_SECOND if has_disk else None
    sources = {name: said for name, said in _SOURCES.items() if disk or not name.startswith("disk")}
    if device.type == "cpu":
        sources["bus_bytes_per_second"] = "half of the memory's rate: a copy reads and writes"
    return Rates(_STEP_SHARE_OF_PRODUCT * _product_rate(device, dtype), bus, host, disk, sources)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type != "cpu" else 512
    a = torch.ones(size, size, dtype=dtype, device=device)
    b = torch.ones(size, size, dtype=dtype, device=device)
    return 2.0 * size**3 / _best_seconds(lambda: a @ b, device)


def _bus_rate(device: torch.device) -> float:
    num_bytes = 64 * 2**20
    try:
        source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:  # the session says what it means that nothing can be pinned
        source = torch.empty(num_bytes, dtype=torch.uint8)
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return num_bytes / _best_seconds(lambda: there.copy_(source, non_blocking=True), device)


def _update_rate() -> float:
    """Bytes of host memory that an update reads and writes a second."""
    length = 32 * 2**20  # half a GiB: less would stay in a server's caches, which are several times as fast
    weight = torch.nn.Parameter(torch.zeros(length))
    weight.grad = torch.ones(length)  # untouched zeros would take no memory
    optimizer = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    return _UPDATE_BYTES * length / _best_seconds(optimizer.step, torch.device("cpu"))


def _best_seconds(work: Callable[[], object], device: torch.device, num_trials: int = 4) -> float:
    best = float("inf")
    for _ in range(num_trials):
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - begun)
    return max(best, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
