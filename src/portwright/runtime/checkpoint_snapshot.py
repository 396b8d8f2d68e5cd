"""Private copies of a state in host memory, made fast enough to be taken between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from portwright.target import Shard

_ALIGN_BYTES = 64
# Pinned memory comes in powers of two: one large block could be half empty, many of this size cannot.
_BLOCK_BYTES = 256 << 20
_NUM_KEPT_SLOTS = 2

_Layout = list[tuple[torch.Size, torch.dtype]]


class HostSnapshot:
    """Copies named tensors to host memory that is used again once nobody holds the copies.

    Fresh memory costs a page fault every 4 KiB, more than the copy itself. A snapshot's memory is free again
    when the last of its shards is dropped, which a writer does by writing them; until then the next snapshot
    uses other memory, so a shard never changes under its receiver, however long it is kept. Two sets of buffers
    are kept, the second only if it was needed.
    """

    def __init__(self, pins: bool = True) -> None:
        self._pins = pins  # where the copies come from a GPU
        self._slots: list[_Slot] = []

    def take(self, named: Iterable[tuple[str, torch.Tensor]]) -> list[Shard]:
        """Copies all tensors, from whatever device, and waits for the copies."""
        named = list(named)
        sources = [source for _, source in named]
        pinned = self._pins and any(source.is_cuda for source in sources)
        layout = [(source.shape, source.dtype) for source in sources]
        # Buffers born in inference mode could not be filled again outside it.
        with torch.inference_mode(False), torch.no_grad():
            copies = self._free_slot(layout, pinned).fill(sources)
        return [Shard(name, copy) for (name, _), copy in zip(named, copies, strict=True)]

    def _free_slot(self, layout: _Layout, pinned: bool) -> _Slot:
        free = [slot for slot in self._slots if not slot.is_held()]
        for slot in free:
            if slot.layout == layout and slot.pinned == pinned:
                return slot
        stale = free[0] if free else self._slots[0] if len(self._slots) == _NUM_KEPT_SLOTS else None
        if stale is not None:  # what still holds its memory keeps it alive, as long as it needs it
            self._slots.remove(stale)
        del free, stale
        self._slots.append(_Slot(layout, pinned))
        return self._slots[-1]


class _Slot:
    """Memory for one snapshot of a given layout."""

    def __init__(self, layout: _Layout, pinned: bool) -> None:
        self.layout = layout
        self.pinned = pinned
        self._places: list[tuple[torch.Size, tuple[int, ...], torch.dtype, int, int]] = []
        block_sizes: list[int] = []
        for shape, dtype in layout:
            num_bytes = -(-shape.numel() * dtype.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
            if not block_sizes or block_sizes[-1] + num_bytes > _BLOCK_BYTES:
                block_sizes.append(0)
            stride = torch.empty(shape, device="meta").stride()
            self._places.append((shape, stride, dtype, len(block_sizes) - 1, block_sizes[-1]))
            block_sizes[-1] += num_bytes
        self._blocks = [
            torch.empty(max(size, _ALIGN_BYTES), dtype=torch.uint8, pin_memory=pinned) for size in block_sizes
        ]
        self._targets = self._views([block.numpy() for block in self._blocks])
        self._held: list[weakref.ref[Any]] = []

    def is_held(self) -> bool:
        return any(holder() is not None for holder in self._held)

    def fill(self, sources: list[torch.Tensor]) -> list[torch.Tensor]:
        if sources:
            # Only CUDA's copies are waited for below; those of other devices must have ended here.
            torch._foreach_copy_(self._targets, sources, non_blocking=self.pinned)
        for device in {source.device for source in sources if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        # Each storage made from a holder keeps it alive, so a dead holder proves that no tensor, view or array
        # made of this snapshot is left.
        holders = [block.numpy() for block in self._blocks]
        self._held = [weakref.ref(holder) for holder in holders]
        return self._views(holders)

    def _views(self, holders: list[Any]) -> list[torch.Tensor]:
        needed = {(block, dtype) for _, _, dtype, block, _ in self._places}
        bases = {(block, dtype): torch.frombuffer(holders[block], dtype=dtype) for block, dtype in needed}
        return [
            bases[block, dtype].as_strided(shape, stride, start // dtype.itemsize)
            for shape, stride, dtype, block, start in self._places
        ]
