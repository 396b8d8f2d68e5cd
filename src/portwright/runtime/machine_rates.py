"""Measures in a fraction of a second what a machine sustains: arithmetic, the bus, and memory under an optimizer's update."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from portwright.runtime.speed_model import Rates

# A step does not reach what a square product does: of an H200's a GPT of 3.5 billion parameters gets about this much.
_OF_PRODUCT = 0.8
_UPDATE_BYTES = 28  # an element of fused AdamW: weight and two moments read and written, gradient read
_DISK_BYTES_PER_SECOND = (
    3e9  # an NVMe drive of its day, reading and writing in turns; not measured, a store may be anywhere
)
_SOURCES = {
    "flops_per_second": f"measured: {_OF_PRODUCT} of a square product",
    "bus_bytes_per_second": "measured: pinned copies",
    "host_bytes_per_second": "measured: torch's fused AdamW",
    "disk_bytes_per_second": "assumed: an NVMe drive",
}


def measure_rates(device: torch.device, dtype: torch.dtype, has_disk: bool) -> Rates:
    """Takes about 0.1 s, and memory for a moment: tens of MiB on the device and a few hundred on the host."""
    host = _update_rate()
    bus = _bus_rate(device) if device.type != "cpu" else host / 2
    disk = _DISK_BYTES_PER_SECOND if has_disk else None
    sources = {name: said for name, said in _SOURCES.items() if disk or not name.startswith("disk")}
    if device.type == "cpu":
        sources["bus_bytes_per_second"] = "half of the memory's rate: a copy reads and writes"
    return Rates(_OF_PRODUCT * _product_rate(device, dtype), bus, host, disk, sources)


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
    length = 4 * 2**20
    weight = torch.nn.Parameter(torch.zeros(length))
    weight.grad = torch.zeros(length)
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
