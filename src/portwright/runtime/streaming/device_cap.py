"""A limit on what a step may keep on the device: counted by hand on a CPU, by CUDA's allocator on a GPU."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from portwright.errors import UserError
from portwright.job.sizes import show_bytes

STEP = "made in the step"  # outside of every layer
_KEY = "runconfig.streaming.device_memory"
_CURE = (
    "Use a smaller batch, fewer runconfig.streaming.slots, runconfig.streaming.offload_activations: true, smaller layers "
    f"(runconfig.streaming.layers), or a larger {_KEY}."
)
_MOST_HOLDERS = 6  # in a message


class DeviceMemoryError(UserError):
    """A step needs more memory of the device than it may have."""


@dataclass
class _Made:
    storage: weakref.ref[torch.UntypedStorage]
    num_bytes: int
    label: str


class DeviceCap:
    """On a CPU: raises DeviceMemoryError where a step would keep more than `limit_bytes` in its device's memory.

    Inside `with cap:` every storage that an operation of this thread makes counts until it dies, backward and
    recomputation included; views and operations in place make none. What lived before does not count, unless `take` or
    `adopt` says so. Memory that an operation uses and gives back while it runs is not seen.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes  # None: only counts
        self.peak = 0
        self.peak_by_label: dict[str, int] = {}
        self._by_label: dict[str, int] = {}
        self._total = 0
        self._made: dict[int, _Made] = {}
        self._dead: deque[tuple[int, _Made]] = deque()  # finalizers run anywhere, even inside our own lock
        self._lock = threading.RLock()
        self._layers: list[str] = []
        self._watches: list[_Watch] = []

    @property
    def held(self) -> int:
        """Bytes that count now."""
        with self._lock:
            self._uncount_dead()
            return self._total

    @property
    def held_by_label(self) -> dict[str, int]:
        with self._lock:
            self._uncount_dead()
            return {label: num_bytes for label, num_bytes in self._by_label.items() if num_bytes}

    def take(self, label: str, num_bytes: int) -> None:
        """Counts memory under a name until it is given back; raises before the limit is exceeded."""
        with self._lock:
            self._check(num_bytes, label)
            self._add(label, num_bytes)

    def give_back(self, label: str, num_bytes: int) -> None:
        with self._lock:
            if self._by_label.get(label, 0) < num_bytes:
                held = self._by_label.get(label, 0)
                raise ValueError(f"'{label}' holds {held} bytes and gives back {num_bytes}")
            self._add(label, -num_bytes)

    def adopt(self, label: str, *tensors: Tensor) -> None:
        """Counts tensors that were made outside the block, until they die; a tensor that counts already keeps its label."""
        for tensor in tensors:
            for storage in _storages(tensor):
                self._count(storage, label, label)

    @contextmanager
    def within(self, layer: str) -> Iterator[None]:
        """Memory allocated inside counts for the layer."""
        self._layers.append(layer)
        try:
            yield
        finally:
            self._layers.pop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Memory allocated inside is host memory and does not count."""
        watch = self._watches[-1] if self._watches else None
        before = watch.is_paused if watch else False
        if watch:
            watch.is_paused = True
        try:
            yield
        finally:
            if watch:
                watch.is_paused = before

    def __enter__(self) -> DeviceCap:
        watch = _Watch(self)
        watch.__enter__()  # type: ignore[no-untyped-call]
        self._watches.append(watch)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._watches.pop().__exit__(*failure)  # type: ignore[no-untyped-call]

    def reset_peak(self) -> None:
        with self._lock:
            self._uncount_dead()
            self.peak, self.peak_by_label = self._total, self.held_by_label

    def _count(self, storage: torch.UntypedStorage, by: str, label: str | None = None) -> None:
        """A storage that an operation returned: new, grown or shrunk."""
        with self._lock:
            self._uncount_dead()
            key, num_bytes = storage._cdata, storage.nbytes()
            known = self._made.get(key)
            if known is None:
                label = label or (self._layers[-1] if self._layers else STEP)
                known = self._made[key] = _Made(weakref.ref(storage), 0, label)
                weakref.finalize(storage, self._dead.append, (key, known)).atexit = False
            grown = num_bytes - known.num_bytes
            known.num_bytes = num_bytes
            self._total += grown
            self._by_label[known.label] = self._by_label.get(known.label, 0) + grown
            self._check(0, by, (known.label, grown))
            self._note_peak()

    def _knows(self, storage: torch.UntypedStorage) -> bool:
        with self._lock:
            self._uncount_dead()
            return storage._cdata in self._made

    def _add(self, label: str, num_bytes: int) -> None:
        self._uncount_dead()
        self._total += num_bytes
        self._by_label[label] = self._by_label.get(label, 0) + num_bytes
        self._note_peak()

    def _note_peak(self) -> None:
        if self._total > self.peak:
            self.peak, self.peak_by_label = self._total, {k: v for k, v in self._by_label.items() if v}

    def _uncount_dead(self) -> None:
        while self._dead:
            key, made = self._dead.popleft()
            if self._made.get(key) is made:
                del self._made[key]
            self._total -= made.num_bytes
            self._by_label[made.label] -= made.num_bytes

    def _measure_again(self) -> None:
        """Measures storages anew, which code may have resized; called only before an error."""
        for made in list(self._made.values()):
            storage = made.storage()
            if storage is not None:
                change = storage.nbytes() - made.num_bytes
                made.num_bytes += change
                self._total += change
                self._by_label[made.label] += change

    def _check(self, more: int, by: str, counted: tuple[str, int] | None = None) -> None:
        """Raises where `more` does not fit; `counted` is the request, where it counts already."""
        if self.limit_bytes is None or self._total + more <= self.limit_bytes:
            return
        self._uncount_dead()
        self._measure_again()
        if self._total + more <= self.limit_bytes:
            return
        held = self.held_by_label
        asked = more
        if counted is not None:
            label, asked = counted
            held[label] = held.get(label, 0) - asked
        before = self._total + more - asked
        holders = sorted(((k, v) for k, v in held.items() if v > 0), key=lambda pair: -pair[1])
        if len(holders) > _MOST_HOLDERS:
            rest = holders[_MOST_HOLDERS - 1 :]
            holders = [
                *holders[: _MOST_HOLDERS - 1],
                (f"{len(rest)} others", sum(num_bytes for _, num_bytes in rest)),
            ]
        table = ", ".join(f"{label} {show_bytes(num_bytes)}" for label, num_bytes in holders) or "nothing"
        where = f" in layer '{self._layers[-1]}'" if self._layers else ""
        raise DeviceMemoryError(
            f"out of device memory{where}: {show_bytes(asked)} for {by} beside {show_bytes(before)}, of "
            f"{show_bytes(self.limit_bytes)} ({_KEY}); held: {table}.",
            _CURE,
            {"limit_bytes": self.limit_bytes, "wanted_bytes": asked, "held_bytes": dict(holders)},
        )


class _Watch(TorchDispatchMode):
    def __init__(self, cap: DeviceCap) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cap = cap
        self.is_paused = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.is_paused:
            return result
        # torch.tensor makes its storage unseen and only then passes it through here.
        is_fresh = func is torch.ops.aten.lift_fresh.default
        old: set[int] | None = None
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            for storage in _storages(tensor):
                if not is_fresh and not self._cap._knows(storage):
                    if old is None:
                        old = {
                            each._cdata
                            for given in tree_leaves((args, kwargs))
                            if isinstance(given, Tensor)
                            for each in _storages(given)
                        }
                    if storage._cdata in old:
                        continue  # a view of what lived before
                self._cap._count(storage, _name(func))
        return result


def _name(func: Callable[..., Any]) -> str:
    return str(func).removesuffix(".default")


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor in the CPU's memory; sparse tensors have several."""
    if tensor.device.type != "cpu":
        return []
    if tensor.layout is torch.sparse_coo:
        return [part.untyped_storage() for part in (tensor._indices(), tensor._values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [
            part.untyped_storage() for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        ]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [
            part.untyped_storage() for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
        ]
    if tensor.layout is not torch.strided:
        return []  # oneDNN's own blocks have no storage to look at
    return [tensor.untyped_storage()]


def cap_cuda(device: torch.device, num_bytes: int | None) -> int:
    """Lets torch's allocator take at most so much of a GPU (None: all of it again); gives the limit that now holds."""
    total: int = torch.cuda.get_device_properties(device).total_memory
    limit = total if num_bytes is None else min(num_bytes, total)
    torch.cuda.set_per_process_memory_fraction(limit / total, device)
    return limit


_OUT_OF_MEMORY: type[BaseException] = (
    torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
)


@contextmanager
def explain_out_of_memory(
    device: torch.device, limit_bytes: int | None = None, layer: Callable[[], str | None] = lambda: None
) -> Iterator[None]:
    """Turns CUDA's out-of-memory error into a DeviceMemoryError; `layer` tells which one was running."""
    try:
        yield
    except _OUT_OF_MEMORY as error:
        name = layer()
        where = f" in layer '{name}'" if name else ""
        held = (
            f" {show_bytes(torch.cuda.memory_allocated(device))} were in use, {show_bytes(torch.cuda.memory_reserved(device))} "
            "with what the allocator keeps"
            if device.type == "cuda"
            else ""
        )
        limit = f" of {show_bytes(limit_bytes)} ({_KEY})" if limit_bytes is not None else ""
        first_line = str(error).strip().partition("\n")[0]
        raise DeviceMemoryError(
            f"out of device memory{where}:{held}{limit}. {first_line}" if held else first_line, _CURE
        ) from error
