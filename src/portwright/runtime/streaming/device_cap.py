"""A limit on what a step may keep on the device: counted by hand on a CPU, by CUDA's allocator on a GPU."""

from __future__ import annotations

import weakref
from collections import Counter, deque
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
    recomputation included; views and operations in place make none. What lived before does not count, unless `take` says
    so. Memory that an operation uses and gives back while it runs is not seen.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes  # None: only counts
        self._total = 0
        self._taken: Counter[str] = Counter()
        self._made: dict[int, _Made] = {}
        self._dead: deque[tuple[int, _Made]] = deque()  # filled by finalizers, which run in any thread
        self._layers: list[str] = []
        self._watches: list[_Watch] = []

    @property
    def held(self) -> int:
        """Bytes that count now."""
        self._uncount_dead()
        return self._total

    @property
    def held_by_label(self) -> Counter[str]:
        self._uncount_dead()
        held = self._taken.copy()
        for made in self._made.values():
            held[made.label] += made.num_bytes
        return held

    def take(self, label: str, num_bytes: int) -> None:
        """Counts memory under a name; raises before the limit is exceeded."""
        self._check(num_bytes, label)
        self._total += num_bytes
        self._taken[label] += num_bytes

    @contextmanager
    def within(self, layer: str) -> Iterator[None]:
        """Memory allocated inside counts for the layer."""
        self._layers.append(layer)
        try:
            yield
        finally:
            self._layers.pop()

    def __enter__(self) -> DeviceCap:
        watch = _Watch(self)
        watch.__enter__()  # type: ignore[no-untyped-call]
        self._watches.append(watch)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._watches.pop().__exit__(*failure)  # type: ignore[no-untyped-call]

    def knows(self, storage: torch.UntypedStorage) -> bool:
        self._uncount_dead()
        return storage._cdata in self._made

    def count(self, storage: torch.UntypedStorage, by: str) -> None:
        """A storage that an operation returned: new, grown or shrunk."""
        self._uncount_dead()
        key, num_bytes = storage._cdata, storage.nbytes()
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = _Made(
                weakref.ref(storage), 0, self._layers[-1] if self._layers else STEP
            )
            weakref.finalize(storage, self._dead.append, (key, made)).atexit = False
        grown = num_bytes - made.num_bytes
        made.num_bytes = num_bytes
        self._total += grown
        self._check(0, by, (made.label, grown))

    def _uncount_dead(self) -> None:
        while self._dead:
            key, made = self._dead.popleft()
            if self._made.get(key) is made:
                del self._made[key]
            self._total -= made.num_bytes

    def _measure_again(self) -> None:
        """Measures storages anew, which code may have resized; called only before an error."""
        for made in list(self._made.values()):
            storage = made.storage()
            if storage is not None:
                change = storage.nbytes() - made.num_bytes
                made.num_bytes += change
                self._total += change

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
            held[label] -= asked
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

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # torch.tensor makes its storage unseen and only then passes it through here.
        is_fresh = func is torch.ops.aten.lift_fresh.default
        old: set[int] | None = None
        for storage in _storages(result):
            if not is_fresh and not self._cap.knows(storage):
                if old is None:
                    old = {each._cdata for each in _storages((args, kwargs))}
                if storage._cdata in old:
                    continue  # a view of what lived before
            self._cap.count(storage, str(func).removesuffix(".default"))
        return result


# Of sparse tensors, by layout. oneDNN's own blocks have no storage to look at.
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """The storages of tensors in the CPU's memory; a sparse tensor has several."""
    for tensor in tree_leaves(tree):
        if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
            if tensor.layout is torch.strided:
                yield tensor.untyped_storage()
            for part in _PARTS.get(tensor.layout, ()):
                yield getattr(tensor, part)().untyped_storage()


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
