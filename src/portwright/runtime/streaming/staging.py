"""Copies between host and device: straight where the host's side is pinned, else through a ring of pinned chunks."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.lanes import DONE, Mark

NUM_CHUNKS = 8  # in flight in each direction
MAX_CHUNK_BYTES = 16 * 2**20  # 0.3 ms of a PCIe 5 bus
MIN_CHUNK_BYTES = 256 * 2**10  # under this the launches cost more than the copy


class Bus(Protocol):
    """How bytes get to a device and back: the few calls that differ between a GPU and a CPU."""

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        """Goes into the stream; returns before it is done where both sides allow that."""
        ...

    def mark(self, stream: Any) -> Mark:
        """A mark after all work put into the stream so far."""
        ...


class CudaBus:
    """Streams of a GPU; None means the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def mark(self, stream: Any) -> Mark:
        # A thread that waits for it sleeps: the cores are the optimizer's.
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device) if stream is None else stream)
        return event  # type: ignore[no-any-return]


class CpuBus:
    """The device is the host: a copy is done when it returns."""

    def copy(self, target: Tensor, source: Tensor, stream: Any) -> None:
        target.copy_(source)

    def mark(self, stream: Any) -> Mark:
        return DONE


class Copy:
    """A copy on its way; work put into the stream after it comes after it, the host has to ask."""

    def __init__(self, mark: Mark, num_left: int = 0) -> None:
        self._mark, self._num_left = mark, num_left
        self._is_drained = num_left > 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @property
    def in_stream(self) -> Mark | None:
        """Where it ends in its stream; None: a thread fills the host's side, and only `synchronize` tells when."""
        return None if self._is_drained else self._mark

    def synchronize(self) -> None:
        """Waits until the bytes are there, and raises what went wrong on the way."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_left == 0)
        if self._failure is not None:
            raise self._failure
        self._mark.synchronize()

    def query(self) -> bool:
        """Whether the bytes are there, without waiting."""
        return self._num_left == 0 and self._failure is None and self._mark.query()

    def _arrived(self, failure: BaseException | None) -> None:
        with self._changed:
            self._num_left -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()


class Staging:
    """Copies of flat memory up to the device and down from it, from any thread.

    Both put all of their work into the stream before they return. With a pinned host side they return at once, and the
    host's bytes must stay until the copy is done. Otherwise `up` has read the host's bytes when it returns, and `down` fills
    them from a thread: wait for the Copy, not only for the stream. Make it before the store's arrays: its rings are then
    pinned even where the rest is refused.
    """

    def __init__(self, device: torch.device, store: HostStore, bus: Bus | None = None) -> None:
        self.device, self.store = device, store
        self._bus: Bus = bus if bus is not None else CudaBus(device) if device.type == "cuda" else CpuBus()
        self._is_direct = bus is None and device.type != "cuda"
        self._up_ring = None if self._is_direct else _make_ring(store, "up")
        self._down_ring = None if self._is_direct else _make_ring(store, "down")
        self._drain = None if self._down_ring is None else _Drain()
        if not self._is_direct and (self._up_ring is None or self._down_ring is None):
            store.note(
                "no pinned memory for copies: each one of an unpinned array makes its thread wait for the device"
            )

    def up(self, target: Tensor, source: Tensor, stream: Any = None) -> Copy:
        """Host bytes to the device."""
        to, of = _bytes(target), _bytes(source)
        _check(to, of)
        if of.numel() == 0:
            return Copy(DONE)
        ring = self._ring_for(of, self._up_ring)
        if ring is None:
            self._bus.copy(to, of, stream)
            return Copy(self._bus.mark(stream))
        for start, end in _pieces(of.numel(), ring.chunk_bytes):
            chunk = ring.take()
            try:
                chunk.free.synchronize()
                part = chunk.buffer[: end - start]
                part.copy_(of[start:end])
                self._bus.copy(to[start:end], part, stream)
                chunk.free = self._bus.mark(stream)
            finally:
                ring.give(chunk)
        return Copy(self._bus.mark(stream))

    def down(self, target: Tensor, source: Tensor, stream: Any = None) -> Copy:
        """Device bytes to the host."""
        to, of = _bytes(target), _bytes(source)
        _check(to, of)
        if of.numel() == 0:
            return Copy(DONE)
        ring = self._ring_for(to, self._down_ring)
        if ring is None:
            self._bus.copy(to, of, stream)
            return Copy(self._bus.mark(stream))
        pieces = list(_pieces(of.numel(), ring.chunk_bytes))
        copy = Copy(DONE, len(pieces))
        for position, (start, end) in enumerate(pieces):
            chunk = ring.take()
            try:
                part = chunk.buffer[: end - start]
                self._bus.copy(part, of[start:end], stream)
                chunk.free = self._bus.mark(stream)
            except BaseException as failure:
                ring.give(chunk)
                for _ in pieces[position:]:  # none of them will come: a waiter must not wait for them
                    copy._arrived(failure)
                raise
            assert self._drain is not None
            self._drain.put(ring, chunk, to[start:end], copy)
        return copy

    def close(self) -> None:
        """Waits for what is under way."""
        drain, self._drain = self._drain, None
        self._up_ring = self._down_ring = None
        if drain is not None:
            drain.close()

    def _ring_for(self, host: Tensor, ring: _Ring | None) -> _Ring | None:
        """The ring for a copy; None where a plain copy is enough, or no ring is pinned."""
        if ring is None or self.store.is_pinned(host) or _torch_pinned(host):
            return None
        return ring


class _Chunk:
    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.free: Mark = DONE  # the copy that used it last


class _Ring:
    """Pinned chunks. No thread waits for one while it holds another, so that none can deadlock."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self.chunk_bytes = buffers[0].numel()
        self._free: queue.SimpleQueue[_Chunk] = queue.SimpleQueue()
        for buffer in buffers:
            self._free.put(_Chunk(buffer))

    def take(self) -> _Chunk:
        return self._free.get()

    def give(self, chunk: _Chunk) -> None:
        self._free.put(chunk)


class _Drain:
    """A thread that empties chunks that came down, in their order."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[_Ring, _Chunk, Tensor, Copy] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="portwright-staging", daemon=True)
        self._thread.start()

    def put(self, ring: _Ring, chunk: _Chunk, target: Tensor, copy: Copy) -> None:
        self._work.put((ring, chunk, target, copy))

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            ring, chunk, target, copy = work
            failure: BaseException | None = None
            try:
                chunk.free.synchronize()
                target.copy_(chunk.buffer[: target.numel()])
            except BaseException as error:  # raised where the copy is waited for
                failure = error
            chunk.free = DONE
            ring.give(chunk)
            copy._arrived(failure)
            del work, chunk, target, copy  # not to be kept alive while there is nothing to do


def _make_ring(store: HostStore, direction: str) -> _Ring | None:
    chunk_bytes = min(MAX_CHUNK_BYTES, store.staging_bytes // (2 * NUM_CHUNKS) // 4096 * 4096)
    if chunk_bytes < MIN_CHUNK_BYTES:
        return None
    buffers: list[Tensor] = []
    for i in range(NUM_CHUNKS):
        buffers.append(store.array(f"staging {direction} {i}", chunk_bytes, "staging"))
        if not store.is_pinned(buffers[-1]):
            return None
    return _Ring(buffers)


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach()
    if not flat.is_contiguous():
        raise ValueError(f"staging copies contiguous memory; received strides {tuple(flat.stride())}")
    return flat.reshape(-1).view(torch.uint8)


def _check(target: Tensor, source: Tensor) -> None:
    if target.numel() != source.numel():
        raise ValueError(f"a copy of {source.numel()} bytes into {target.numel()}")


def _pieces(num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, num_bytes, chunk_bytes):
        yield start, min(start + chunk_bytes, num_bytes)


def _torch_pinned(host: Tensor) -> bool:
    return torch.cuda.is_available() and host.is_pinned()
