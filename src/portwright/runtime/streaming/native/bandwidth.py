"""Measures the speed of host memory with the loads and stores of the optimizer's own step."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from portwright.errors import UserError
from portwright.runtime.streaming.native.adam import NativeAdam, default_threads
from portwright.runtime.streaming.native.library import NO_ARRAY, AdamCall

_NUM_TRIALS = 4  # the first one warms up
# fp32 gradient and three fp32 arrays read, the three written: what `step` moves, without half precision on either side
_STEP_BYTES = 4 + 3 * 8


@dataclass(frozen=True)
class Bandwidth:
    """Bytes that went over the memory bus in a second, read and written, the best of a few trials."""

    copy: float  # one array into another, past the caches
    update: (
        float  # three arrays updated in place from a fourth, with next to no arithmetic: the limit of `step`
    )


def measure_bandwidth(
    native: NativeAdam, num_bytes: int = 512 << 20, num_threads: int | None = None
) -> Bandwidth:
    """Takes `num_bytes` of memory for a moment; far more than the caches hold, or it is they that are measured."""
    if num_bytes < 1 << 10:
        raise UserError(f"num_bytes={num_bytes} is too little to measure with.", "Pass hundreds of MiB.")
    threads = default_threads() if num_threads is None else num_threads
    length = num_bytes // 16
    memory = torch.empty(4 * length, dtype=torch.float32)
    native.touch(memory, threads)
    start, half = memory.data_ptr(), 8 * length
    grad, *state = (start + 4 * length * i for i in range(4))
    library = native._library
    call = AdamCall(grad, *state, *state, n=length, half_dtype=NO_ARRAY, only_traffic=True)
    copy = _best(lambda: library.portwright_copy(start, start + half, half, threads))
    update = _best(lambda: library.portwright_adam_step(ctypes.byref(call), threads))
    return Bandwidth(copy=2 * half / copy, update=_STEP_BYTES * length / update)


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_NUM_TRIALS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
