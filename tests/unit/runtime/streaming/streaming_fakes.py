"""Stand-ins for CUDA: a runtime that registers memory, and a bus that copies as late as it may; and a cap that tells its peak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from portwright.runtime.streaming.device_cap import DeviceCap
from portwright.runtime.streaming.lanes import Lanes


class PeakCap(DeviceCap):
    """Also keeps the most that was held."""

    peak = 0

    def count(self, storage: torch.UntypedStorage, by: str) -> None:
        super().count(storage, by)
        self.peak = max(self.peak, self.held)


class FakeCudart:
    """Remembers what is registered, and refuses after so many."""

    def __init__(self, refuse_after: int | None = None) -> None:
        self.registered: dict[int, int] = {}
        self.num_asked = 0
        self._refuse_after = refuse_after

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        self.num_asked += 1
        assert flags == 1
        assert address % 4096 == 0
        assert num_bytes % 4096 == 0
        assert address not in self.registered
        if self._refuse_after is not None and len(self.registered) >= self._refuse_after:
            return 2
        self.registered[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) is not None else 713

    def cudaGetErrorString(self, status: int) -> str:
        return {2: "out of memory"}.get(status, "unknown")


class LateBus:
    """Runs nothing until somebody waits: a buffer that is used again too early shows as wrong bytes."""

    def __init__(self, fail_at: int | None = None) -> None:
        self._lock = threading.RLock()
        self._work: dict[Any, list[Callable[[], object]]] = {}
        self._num_done: dict[Any, int] = {}
        self.num_copies = 0
        self.num_done = 0
        self.fail_at = fail_at

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        with self._lock:
            self.num_copies += 1
            if self.num_copies == self.fail_at:
                raise RuntimeError("the bus is gone")
            self._work.setdefault(stream, []).append(lambda: self._do(target, source))

    def _do(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)
        self.num_done += 1

    def wait(self, stream: Any, mark: Any) -> None:
        """What comes into the stream from now on comes after the mark."""
        with self._lock:
            self._work.setdefault(stream, []).append(mark.synchronize)

    def mark(self, stream: Any) -> LateMark:
        with self._lock:
            return LateMark(self, stream, len(self._work.get(stream, [])))

    def run(self, stream: Any, count: int) -> None:
        with self._lock:
            for work in self._work.get(stream, [])[self._num_done.get(stream, 0) : count]:
                work()
            self._num_done[stream] = max(count, self._num_done.get(stream, 0))

    def is_done(self, stream: Any, count: int) -> bool:
        with self._lock:
            return self._num_done.get(stream, 0) >= count


class LateMark:
    def __init__(self, bus: LateBus, stream: Any, count: int) -> None:
        self._bus, self._stream, self._count = bus, stream, count

    def synchronize(self) -> None:
        self._bus.run(self._stream, self._count)

    def query(self) -> bool:
        return self._bus.is_done(self._stream, self._count)


class LateLanes(Lanes):
    """The computation runs at once, and the copies beside it as late as they may."""

    def __init__(self, bus: LateBus) -> None:
        super().__init__(torch.device("cpu"))
        self._bus, self._lane = bus, None

    def stream(self, name: str) -> Any:
        return name

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        before, self._lane = self._lane, name  # type: ignore[assignment]
        yield
        self._lane = before

    def mark(self) -> Any:
        return self._bus.mark(self._lane)

    def wait_for(self, mark: Any) -> None:
        if self._lane is None:
            mark.synchronize()
        else:
            self._bus.wait(self._lane, mark)
