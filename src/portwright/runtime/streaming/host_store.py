"""Where a streamed model's arrays live on the host: memory, pinned while the budget lasts, or files on a fast disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.job.sizes import show_bytes
from portwright.runtime.streaming.disk_array import DiskArray, ask_disk_for, check_folder, lies_in_memory
from portwright.runtime.streaming.host_memory import HostMemoryError, ask_for, read_host_memory
from portwright.runtime.streaming.pinning import CudaPinner, Pinner, explain_refusal

# Zeroes an array, with the threads that will use it: the first touch places its pages.
Touch = Callable[[Tensor], Any]
Kind = Literal["weights", "gradients", "state", "undo", "staging", "activations"]

# What is copied most often is pinned first.
_PIN_ORDER: tuple[Kind, ...] = ("staging", "weights", "gradients", "activations", "state", "undo")
_ON_DISK: frozenset[Kind] = frozenset({"state", "undo"})
_PINNED_SHARE = 0.6  # of free host memory; more starves the page cache and the input workers
_STAGING_BYTES = 256 * 2**20  # kept back for the ring through which unpinned arrays are copied
_HUGE_PAGE_BYTES = 2 * 2**20
_CURES = (
    "Set runconfig.streaming.store to a folder on a fast disk, halve the optimizer's state with "
    "runconfig.streaming.state_dtype: bf16, use an optimizer with less state, or a machine with more memory."
)


class StoreOptions(Protocol):
    """The keys of runconfig.streaming that a store reads."""

    @property
    def store(self) -> str | None: ...

    @property
    def pinned_memory(self) -> int | None: ...


@dataclass
class Used:
    """Bytes of one kind; pinned ones are counted in `ram_bytes` too."""

    ram_bytes: int = 0
    pinned_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class _Region:
    start: int  # address
    num_bytes: int
    mapping: mmap.mmap  # kept until it is unpinned
    is_pinned: bool
    disk: DiskArray | None


class HostStore:
    """Flat host arrays for a model's weights, gradients and optimizer state.

    `weights` are what uploads read (in the device's layout) and `state` is what only the optimizer touches: the fp32
    masters and the moments. With `options.store` set, `state` and `undo` are files in that folder, the rest is memory.
    Arrays outlive the store: `close` only takes back the pinning, and the memory goes with its last tensor.
    """

    def __init__(
        self,
        options: StoreOptions,
        device: torch.device,
        note: Callable[[str], None],
        *,
        num_sharers: int = 1,  # processes of this run on this machine, which all ask at the same time
        touch: Touch = Tensor.zero_,
        cudart: Any = None,
    ) -> None:
        self.note, self._touch = note, touch
        self._folder = None if options.store is None else Path(options.store).expanduser()
        if self._folder is not None:
            check_folder(self._folder)
        self._num_sharers = num_sharers
        self._disk_is_memory = self._folder is not None and lies_in_memory(self._folder)
        if self._disk_is_memory:
            note(f"runconfig.streaming.store: '{self._folder}' is memory (tmpfs) and no disk: it saves none")
        self.used: dict[Kind, Used] = {}
        self._planned: dict[Kind, int] = {}
        self._lock = threading.RLock()
        self._pinner: Pinner | None = None
        self.pinned_budget = 0
        if device.type == "cuda":
            self._pinner = CudaPinner(device, cudart)
            self.pinned_budget = (
                int(read_host_memory().available_bytes * _PINNED_SHARE / num_sharers)
                if options.pinned_memory is None
                else options.pinned_memory
            )
        self.staging_bytes = min(_STAGING_BYTES, self.pinned_budget // 4)
        self._pinned_bytes = 0
        self._regions = _Regions(self._pinner)
        self._release = weakref.finalize(self, self._regions.release)

    def plan(self, needed: Mapping[Kind, int]) -> None:
        """Announces all arrays to come: raises where they do not fit, before the first one is made.

        What is planned is also pinned in order of use, whatever order the arrays are asked for in.
        """
        unknown = set(needed) - set(_PIN_ORDER)
        if unknown:
            raise ValueError(f"kinds {sorted(unknown)}; kinds: {', '.join(_PIN_ORDER)}")
        self._ask(needed)
        self._planned = dict(needed)

    def has_room(self, needed: Mapping[Kind, int]) -> bool:
        """Whether `plan` would take this."""
        try:
            self._ask(needed)
        except UserError:
            return False
        return True

    def array(self, name: str, num_bytes: int, kind: Kind, pin: bool = True) -> Tensor:
        """Flat zeroed bytes, aligned to a page; `name` is for messages. `pin` False: never pinned, even if copies use it."""
        if num_bytes < 0 or kind not in _PIN_ORDER:
            raise ValueError(
                f"an array of {num_bytes} bytes of kind {kind!r}; kinds: {', '.join(_PIN_ORDER)}"
            )
        if not self._release.alive:
            raise RuntimeError(f"the store is closed and makes no array '{name}'")
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            if self._folder is not None and kind in _ON_DISK:
                return self._on_disk(name, num_bytes, kind, self._folder)
            return self._in_memory(name, num_bytes, kind, pin)

    @property
    def is_on_disk(self) -> bool:
        """Whether the state is in files."""
        return self._folder is not None

    def is_pinned(self, array: Tensor) -> bool:
        """Whether an array, or a view of one, is pinned."""
        region = self._regions.find(array)
        return region is not None and region.is_pinned

    def prefetch(self, array: Tensor) -> None:
        """Begins to read an array, or a view of one, from the disk; returns at once."""
        region = self._regions.find(array)
        if region is not None and region.disk is not None:
            self._regions.do_read(region.disk.read_ahead, array.data_ptr() - region.start, array.nbytes)

    def written(self, array: Tensor) -> None:
        """Begins to write an array, or a view of one, back to the disk; returns at once."""
        region = self._regions.find(array)
        if region is not None and region.disk is not None:
            self._regions.do_write(region.disk.write_back, array.data_ptr() - region.start, array.nbytes)

    def describe(self) -> str:
        """For the log: what lies where."""
        parts = []
        for kind, used in self.used.items():
            if used.disk_bytes:
                parts.append(f"{kind} {show_bytes(used.disk_bytes)} on disk")
            if used.ram_bytes:
                pinned = f", {show_bytes(used.pinned_bytes)} pinned" if used.pinned_bytes else ""
                parts.append(f"{kind} {show_bytes(used.ram_bytes)} in memory{pinned}")
        return "; ".join(parts) or "nothing"

    def close(self) -> None:
        """Unregisters what is pinned and lets the files go; may be called again."""
        self._release()

    def _on_disk(self, name: str, num_bytes: int, kind: Kind, folder: Path) -> Tensor:
        if self._disk_is_memory:  # reserving more than there is would get the process killed
            ask_for(num_bytes, f"the array '{name}'", _CURES)
        disk = DiskArray(folder, num_bytes, f"the array '{name}'")
        array = torch.frombuffer(disk.mapping, dtype=torch.uint8)  # reserved blocks read as zero
        self._regions.add(_Region(array.data_ptr(), num_bytes, disk.mapping, False, disk))
        self._used(kind).disk_bytes += num_bytes
        self._count_off(kind, num_bytes)
        return array

    def _in_memory(self, name: str, num_bytes: int, kind: Kind, pin: bool) -> Tensor:
        ask_for(num_bytes, f"the array '{name}'", _CURES)
        mapped_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        spare = _HUGE_PAGE_BYTES if num_bytes >= _HUGE_PAGE_BYTES else 0  # to begin at a huge page
        try:
            mapping = mmap.mmap(-1, mapped_bytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError, OverflowError, ValueError):
            raise HostMemoryError(
                f"the system refused {show_bytes(num_bytes)} of host memory for the array '{name}'.",
                f"See `ulimit -v` and vm.overcommit_memory. {_CURES}",
            ) from None
        whole = torch.frombuffer(mapping, dtype=torch.uint8)
        skip = -whole.data_ptr() % _HUGE_PAGE_BYTES if spare else 0
        if spare and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them: the same memory in small pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
        # A storage of its own that begins at the page: torch asks CUDA about the storage's start, not about the tensor's.
        array = torch.frombuffer(mapping, dtype=torch.uint8, count=num_bytes, offset=skip)
        self._touch(array)
        is_pinned = pin and self._pin(array, mapped_bytes, kind, mapping)
        self._regions.add(_Region(array.data_ptr(), num_bytes, mapping, is_pinned, None))
        used = self._used(kind)
        used.ram_bytes += num_bytes
        used.pinned_bytes += num_bytes if is_pinned else 0
        self._count_off(kind, num_bytes)
        return array

    def _pin(self, array: Tensor, mapped_bytes: int, kind: Kind, mapping: mmap.mmap) -> bool:
        if self._pinner is None or self._pinned_bytes + mapped_bytes > self._budget_for(kind):
            return False
        reason = self._pinner.pin(array.data_ptr(), mapped_bytes)
        if reason is not None:
            self.note(explain_refusal(mapped_bytes, reason, self._pinned_bytes))
            self._pinner = None  # asking again for every array would take long and be refused as well
            return False
        self._pinned_bytes += mapped_bytes
        if hasattr(mmap, "MADV_DONTFORK"):
            # After a fork the next write would move a page of ours while the GPU goes on reading the old one.
            mapping.madvise(mmap.MADV_DONTFORK)
        return True

    def _budget_for(self, kind: Kind) -> int:
        """What is planned and more urgent is kept free for it."""
        if kind == "staging":
            return self.pinned_budget
        before = _PIN_ORDER[: _PIN_ORDER.index(kind)]
        kept = sum(self._planned.get(other, 0) for other in before if self._lies_in_memory(other))
        staged = self.used.get("staging", Used()).pinned_bytes
        return self.pinned_budget - max(0, self.staging_bytes - staged) - kept

    def _ask(self, needed: Mapping[Kind, int]) -> None:
        what = f"the model's arrays ({_listed(needed)})"
        if self._num_sharers > 1:
            what += f", {self._num_sharers} times (one a process)"
        on_disk = sum(size for kind, size in needed.items() if not self._lies_in_memory(kind))
        in_memory = sum(needed.values()) - (0 if self._disk_is_memory else on_disk)
        ask_for(in_memory * self._num_sharers, what, _CURES)
        if self._folder is not None:
            ask_disk_for(on_disk * self._num_sharers, self._folder, what)

    def _lies_in_memory(self, kind: Kind) -> bool:
        return self._folder is None or kind not in _ON_DISK

    def _used(self, kind: Kind) -> Used:
        return self.used.setdefault(kind, Used())

    def _count_off(self, kind: Kind, num_bytes: int) -> None:
        if kind in self._planned:
            self._planned[kind] = max(0, self._planned[kind] - num_bytes)


def _listed(needed: Mapping[Kind, int]) -> str:
    return ", ".join(f"{kind} {show_bytes(size)}" for kind, size in needed.items() if size)


def _start(region: _Region) -> int:
    return region.start


class _Regions:
    """The regions that a store has made, apart from it, so that they can be released when the store is gone."""

    def __init__(self, pinner: Pinner | None) -> None:
        self._pinner = pinner
        self._regions: list[_Region] = []
        self._readers: ThreadPoolExecutor | None = None
        self._writers: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def add(self, region: _Region) -> None:
        # A new list, so that `find` in another thread sees the old one or the new one.
        self._regions = sorted([*self._regions, region], key=_start)

    def find(self, array: Tensor) -> _Region | None:
        regions = self._regions
        place = bisect_right(regions, array.data_ptr(), key=_start) - 1
        if place < 0 or array.device.type != "cpu":
            return None
        region = regions[place]
        return region if array.data_ptr() < region.start + region.num_bytes else None

    def do_read(self, work: Callable[[int, int], None], start: int, num_bytes: int) -> None:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(1, "portwright-read-ahead")
        self._readers.submit(work, start, num_bytes)

    def do_write(self, work: Callable[[int, int], None], start: int, num_bytes: int) -> None:
        if self._writers is None:
            self._writers = ThreadPoolExecutor(1, "portwright-write-back")
        self._writers.submit(work, start, num_bytes)

    def release(self) -> None:
        if os.getpid() != self._process:  # a forked child: the registration is its parent's
            return
        for executor in (self._readers, self._writers):
            if executor is not None:
                executor.shutdown(wait=True, cancel_futures=True)
        pinned = [region for region in self._regions if region.is_pinned]
        if self._pinner is not None and pinned:
            self._pinner.finish()
            for region in pinned:
                self._pinner.unpin(region.start)
        for region in self._regions:
            if region.disk is not None:
                region.disk.close()
        self._regions = []
