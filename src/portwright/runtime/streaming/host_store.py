"""Where a streamed model's arrays live on the host: memory, pinned while the budget lasts, or files on a fast disk.

Pinned memory is registered with CUDA, so that the GPU copies from and to it by itself.
"""

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
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.job.sizes import show_bytes
from portwright.runtime.streaming.disk_array import DiskArray, ask_disk_for, check_folder, lies_in_memory
from portwright.runtime.streaming.host_memory import HostMemoryError, ask_for, read_host_memory

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
        options: StreamingSection,
        device: torch.device,
        note: Callable[[str], None],
        *,
        num_sharers: int = 1,  # processes of this run on this machine, which all ask at the same time
        cudart: Any = None,
    ) -> None:
        self.note = note
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
        self._pinner: CudaPinner | None = None
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
        self._regions.begin(DiskArray.read_ahead, array)

    def written(self, array: Tensor) -> None:
        """Begins to write an array, or a view of one, back to the disk; returns at once."""
        self._regions.begin(DiskArray.write_back, array)

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
        self._used(kind, num_bytes).disk_bytes += num_bytes
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
        array.zero_()
        is_pinned = pin and self._pin(array, mapped_bytes, kind, mapping)
        self._regions.add(_Region(array.data_ptr(), num_bytes, mapping, is_pinned, None))
        used = self._used(kind, num_bytes)
        used.ram_bytes += num_bytes
        used.pinned_bytes += num_bytes if is_pinned else 0
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

    def _used(self, kind: Kind, num_bytes: int) -> Used:
        """What is counted of a kind; so many bytes more are made of what was planned."""
        if kind in self._planned:
            self._planned[kind] = max(0, self._planned[kind] - num_bytes)
        return self.used.setdefault(kind, Used())


def _listed(needed: Mapping[Kind, int]) -> str:
    return ", ".join(f"{kind} {show_bytes(size)}" for kind, size in needed.items() if size)


class _Regions:
    """The regions that a store has made, apart from it, so that they can be released when the store is gone."""

    def __init__(self, pinner: CudaPinner | None) -> None:
        self._pinner = pinner
        self._regions: list[_Region] = []
        self._threads: dict[Any, ThreadPoolExecutor] = {}  # one for each kind of work on the disk
        self._process = os.getpid()

    def add(self, region: _Region) -> None:
        # A new list, so that `find` in another thread sees the old one or the new one.
        self._regions = sorted([*self._regions, region], key=attrgetter("start"))

    def find(self, array: Tensor) -> _Region | None:
        regions = self._regions
        place = bisect_right(regions, array.data_ptr(), key=attrgetter("start")) - 1
        if place < 0 or array.device.type != "cpu":
            return None
        region = regions[place]
        return region if array.data_ptr() < region.start + region.num_bytes else None

    def begin(self, work: Callable[[DiskArray, int, int], None], array: Tensor) -> None:
        """Has a thread do it to the array's part of its file; nothing where it is in memory."""
        region = self.find(array)
        if region is not None and region.disk is not None:
            if work not in self._threads:
                self._threads[work] = ThreadPoolExecutor(1, f"portwright-{work.__name__}")
            self._threads[work].submit(work, region.disk, array.data_ptr() - region.start, array.nbytes)

    def release(self) -> None:
        if os.getpid() != self._process:  # a forked child: the registration is its parent's
            return
        for executor in self._threads.values():
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


class CudaPinner:
    """cudaHostRegister; `cudart` is torch's binding of the CUDA runtime unless a test brings its own."""

    def __init__(self, device: torch.device, cudart: Any = None) -> None:
        self._device = device
        self._is_real = cudart is None
        self._cudart = torch.cuda.cudart() if cudart is None else cudart  # type: ignore[no-untyped-call]

    def pin(self, address: int, num_bytes: int) -> str | None:
        portable = 1  # cudaHostRegisterPortable: for every device of the process
        return self._reason(self._cudart.cudaHostRegister(address, num_bytes, portable))

    def unpin(self, address: int) -> str | None:
        return self._reason(self._cudart.cudaHostUnregister(address))

    def finish(self) -> None:
        if self._is_real:
            # A failed device has no copies under way, and its error was raised where it was used.
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self._device)

    def _reason(self, status: Any) -> str | None:
        code = int(status)
        if code == 0:
            return None
        if self._is_real:
            # CUDA remembers the failure and torch would raise it at the next kernel launch, whatever that is: take it
            # off here, with a launch of our own. An error that broke the device comes back at the next call anyway.
            with contextlib.suppress(RuntimeError):
                torch.empty(1, device=self._device).fill_(1)
        text = getattr(self._cudart, "cudaGetErrorString", lambda status: "")(status)
        return f"{text} (CUDA error {code})" if text else f"CUDA error {code}"


def explain_refusal(num_bytes: int, reason: str, pinned_bytes: int) -> str:
    """The line for the log, with the limit of locked memory where there is one."""
    limit = _locked_limit()
    ulimit = (
        f"; this process may lock {show_bytes(limit)} (raise it with `ulimit -l unlimited`, or memlock in the container)"
        if limit is not None
        else ""
    )
    return (
        f"pinned memory refused: {show_bytes(num_bytes)} more after {show_bytes(pinned_bytes)}: {reason}{ulimit}. Arrays are "
        "not pinned from here on, which is as correct and slower. runconfig.streaming.pinned_memory sets how much to try."
    )


def _locked_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
