"""A layer whose masters, optimizer state and shadow are split over the processes, by flat elements."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from portwright.runtime.streaming.unit import ALIGN_BYTES, Entry, Unit


@dataclass(frozen=True)
class Region:
    """Weights of one type that lie together in a slot, of which each process has a chunk of the same size."""

    dtype: torch.dtype  # on the device
    master_dtype: torch.dtype
    trains: bool
    start: int  # byte in a slot
    host_start: int  # byte in a process's shadow
    chunk: int  # elements of a process

    @property
    def chunk_bytes(self) -> int:
        return self.chunk * self.dtype.itemsize

    def whole(self, slot: Tensor, size: int) -> Tensor:
        return slot[self.start : self.start + size * self.chunk_bytes]

    def own(self, slot: Tensor, rank: int) -> Tensor:
        """A process's chunk of a slot's bytes."""
        first = self.start + rank * self.chunk_bytes
        return slot[first : first + self.chunk_bytes]

    def on_host(self, shadow: Tensor) -> Tensor:
        return shadow[self.host_start : self.host_start + self.chunk_bytes]


@dataclass(frozen=True)
class Part:
    """How one weight is split: each process has the flat elements of it that fall into its chunk."""

    shape: torch.Size
    stride: tuple[int, ...]
    first: int  # element of the region
    chunk: int

    def bounds(self, rank: int) -> tuple[int, int]:
        """The flat elements, in the order of memory, that a process has."""
        begin = max(self.first, rank * self.chunk) - self.first
        end = min(self.first + self.shape.numel(), (rank + 1) * self.chunk) - self.first
        return (begin, end) if end > begin else (0, 0)

    def offset(self, rank: int) -> int:
        """Where in the process's chunk they begin."""
        begin, end = self.bounds(rank)
        return self.first + begin - rank * self.chunk if end > begin else 0

    def flat(self, whole: Tensor) -> Tensor:
        """The elements of a tensor of the weight's shape in the order in which the weight lies in memory; shared where possible."""
        dense = whole.detach()
        if dense.stride() != self.stride:
            dense = torch.empty_strided(self.shape, self.stride, dtype=whole.dtype).copy_(dense)
        return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """A process's elements of a tensor of the weight's shape."""
        begin, end = self.bounds(rank)
        return self.flat(whole)[begin:end]

    def shaped(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.shape, self.stride)


class ShardedUnit(Unit):
    """On the device it is whole; `host` has this process's part, each weight of it a flat parameter, maybe without an element."""

    def __init__(
        self, index: int, unit: Unit, rank: int, size: int, device: torch.device, changed: threading.Condition
    ) -> None:
        self.regions, firsts = lay_out(unit.entries, size)
        self.region_of = [self.regions[region] for region, _ in firsts]
        self.parts = [
            Part(entry.master.shape, entry.stride, first, self.regions[region].chunk)
            for entry, (region, first) in zip(unit.entries, firsts, strict=True)
        ]
        entries = [
            replace(entry, start=region.start + part.first * entry.dtype.itemsize)
            for entry, region, part in zip(unit.entries, self.region_of, self.parts, strict=True)
        ]
        super().__init__(index, unit.name, unit.module, entries, device, changed)
        self.num_bytes = size * sum(region.chunk_bytes for region in self.regions)
        self.rank, self.size = rank, size
        self.host = self._make_host(changed)

    def _make_host(self, changed: threading.Condition) -> Unit:
        entries = []
        for entry, region, part in zip(self.entries, self.region_of, self.parts, strict=True):
            own = nn.Parameter(part.cut(entry.master, self.rank).clone(), entry.master.requires_grad)
            start = region.host_start + part.offset(self.rank) * entry.dtype.itemsize
            entries.append(Entry(entry.name, (), own, entry.dtype, start, (1,)))
            _keep_only_shape(entry.master)
        host = Unit(self.index, self.name, self.module, entries, torch.device("cpu"), changed)
        host.num_bytes = sum(region.chunk_bytes for region in self.regions)
        return host


def shard_units(
    units: Sequence[Unit], rank: int, size: int, device: torch.device, changed: threading.Condition
) -> list[Unit]:
    """The same layers, split; single numbers are left to what is outside the layers, since they have no elements to split."""
    sharded: list[Unit] = []
    for unit in units:
        entries = [entry for entry in unit.entries if entry.master.ndim]
        if entries:
            whole = Unit(unit.index, unit.name, unit.module, entries, device, changed)
            sharded.append(ShardedUnit(len(sharded), whole, rank, size, device, changed))
    return sharded


def lay_out(entries: Sequence[Entry], size: int) -> tuple[list[Region], list[tuple[int, int]]]:
    """Regions of the weights, and by weight its region and first element there."""
    kinds = [(entry.dtype, entry.master.dtype, entry.master.requires_grad) for entry in entries]
    regions: list[Region] = []
    places: dict[int, tuple[int, int]] = {}
    start = host_start = 0
    for kind in dict.fromkeys(kinds):
        dtype, master_dtype, trains = kind
        step = max(1, ALIGN_BYTES // dtype.itemsize)
        num_elements = 0
        for index, entry in enumerate(entries):
            if kinds[index] == kind:
                places[index] = (len(regions), num_elements)
                num_elements += -(-entry.master.numel() // step) * step
        chunk = -(-num_elements // (size * step)) * step
        regions.append(Region(dtype, master_dtype, trains, start, host_start, chunk))
        start += size * regions[-1].chunk_bytes
        host_start += regions[-1].chunk_bytes
    return regions, [places[index] for index in range(len(entries))]


def _keep_only_shape(master: nn.Parameter) -> None:
    """The model keeps a weight's name, shape and type, and none of its memory: it has no values to compute with."""
    nothing = float("nan") if master.is_floating_point() or master.is_complex() else 0
    master.data = torch.full((), nothing, dtype=master.dtype).expand(master.shape)
