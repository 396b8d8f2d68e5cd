"""What a step needs of each IPU's memory: weights, gradients, optimizer state, activations. All of it is estimated.

Counted are the tensors of the trace in the types that an IPU has (64 bits become 32). Not counted are the code of the program,
exchange buffers, padding and the working space of single ops, which on hardware come on top.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from portwright.emulate import target_of
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._placement import Tag
from portwright.graph.graph import ITEM_BYTES, Value

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch


LABEL = "estimated from the tensors of the step; code, exchange buffers and working space of ops come on top"
_MK1_BYTES = 304_000_000  # Graphcore's first IPU: 1,216 tiles, 304 MB
_NO_RECOMPUTATION, _BY_STAGE = 0, 3  # PopART's RecomputationType: None and Pipeline
_PARTS = ("weights", "gradients", "optimizer_state", "activations", "temporary")
# PopART's defaults for what is small enough to stay where it is, in elements.
_LEAST_OFF_CHIP, _LEAST_SHARDED = 2, 8192


@dataclass(frozen=True)
class IpuMemory:
    """What one IPU must hold, in bytes; `off_chip` is what it keeps in streaming memory instead."""

    ipu: int
    stages: tuple[int, ...]
    blocks: tuple[str, ...]
    weights: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    temporary: int = 0
    off_chip: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.activations + self.temporary

    @property
    def name(self) -> str:
        named = [block or "before the first block" for block in self.blocks]
        blocks = (
            f"block{'s' if len(named) > 1 else ''} {', '.join(named)}" if any(self.blocks) else "no blocks"
        )
        stages = ", ".join(map(str, self.stages))
        return f"IPU {self.ipu}, stage{'s' if len(self.stages) > 1 else ''} {stages} ({blocks})"


@dataclass(frozen=True)
class MemoryReport:
    """The memory of each IPU of one replica."""

    ipus: tuple[IpuMemory, ...]
    capacity_bytes: int  # of one IPU
    label: str = LABEL

    def as_json(self) -> dict[str, Any]:
        ipus = [{**asdict(one), "total": one.total} for one in self.ipus]
        return {"capacity_bytes": self.capacity_bytes, "label": self.label, "ipus": ipus}


def check_memory(watch: Watch, options: Any, optimizer: torch.optim.Optimizer | None) -> MemoryReport:
    """Accounts for a traced model; raises Error for the first IPU that cannot hold its part."""
    report = _Account(watch, options, optimizer).report()
    for one in report.ipus:
        if one.total > report.capacity_bytes:
            raise refuse(_explain(one, report, watch))
    return report


def _explain(one: IpuMemory, report: MemoryReport, watch: Watch) -> str:
    largest = max(_PARTS, key=lambda name: int(getattr(one, name)))
    cures = {
        "weights": "more stages, half precision (model.half()), or weights off the chip: TensorLocations.setWeightLocation",
        "gradients": "more stages, half precision, or TensorLocations.setAccumulatorLocation off the chip",
        "optimizer_state": "more stages, an optimizer with less state, half accumulators, or TensorLocations.setOptimizerLocation "
        "off the chip",
        "activations": "a smaller micro-batch with more gradientAccumulation, more stages, half precision, or recomputation",
        "temporary": "a smaller micro-batch, more stages, or half precision",
    }
    more = len(report.ipus) > 1
    others = (
        f" The others: {'; '.join(f'IPU {o.ipu} {_mb(o.total)}' for o in report.ipus if o is not one)}."
        if more
        else ""
    )
    return (
        f"out of memory on {one.name}: {_mb(one.total)} of {_mb(report.capacity_bytes)}. "
        + ", ".join(f"{name.replace('_', ' ')} {_mb(getattr(one, name))}" for name in _PARTS)
        + f". Most of it are {largest.replace('_', ' ')}: use {cures[largest]}.{others} ({report.label}.)"
    )


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def capacity(options: Any) -> int:
    """Bytes of one IPU that hold tensors: a Mk2 or Bow, or a Mk1 where the options name that."""
    if options.exists("ipu_version") and options.ipu_version == 1:
        return _MK1_BYTES
    hardware = target_of("poptorch").hardware
    assert hardware is not None
    machine = hardware()
    assert machine.num_cores is not None
    tiles = machine.num_cores // machine.num_chips
    # What the datasheet says of a whole IPU, as `portwright plan` has it; of one tile only "about 624 KB" is public.
    whole = machine.memory_bytes // machine.num_chips
    copying = int(options.TensorLocations._values.get("numIOTiles", 0))  # tiles that only copy
    return whole * (tiles - copying) // tiles


@dataclass(frozen=True)
class _Location:
    """Where one kind of tensor is kept."""

    is_on_chip: bool
    shards: int  # replicas that each keep a part
    least_off_chip: int
    least_sharded: int

    @classmethod
    def of(cls, options: Any, kind: str) -> _Location:
        name = f"location_{kind}"
        given: Mapping[str, Any] = (
            getattr(options.TensorLocations, name) if options.TensorLocations.exists(name) else {}
        )
        shards = int(options.replication_factor) if given.get("useReplicatedTensorSharding") else 1
        return cls(
            bool(given.get("onChip", True)),
            shards,
            int(given.get("minElementsForOffChip", _LEAST_OFF_CHIP)),
            int(given.get("minElementsForReplicatedTensorSharding", _LEAST_SHARDED)),
        )

    def split(self, num_elements: int, num_bytes: int) -> tuple[int, int]:
        """Bytes on the chip and off it."""
        if self.shards > 1 and num_elements >= self.least_sharded:
            num_bytes = -(-num_bytes // self.shards)
        if self.is_on_chip or num_elements < self.least_off_chip:
            return num_bytes, 0
        return 0, num_bytes


class _Account:
    """Adds up one trace."""

    def __init__(self, watch: Watch, options: Any, optimizer: torch.optim.Optimizer | None) -> None:
        self._watch, self._options, self._optimizer = watch, options, optimizer
        self._placement, self._values = watch.placement, watch.tape.values
        # The placed nodes, and where they are.
        self._tagged = [
            (node, tag) for node, tag in zip(watch.tape.nodes, watch.tags, strict=True) if tag is not None
        ]

    def report(self) -> MemoryReport:
        counted: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*_PARTS, "off_chip"), 0))
        for part, tag, on_chip, off_chip in (*self._weight_entries(), *self._activation_entries()):
            counted[tag.ipu][part] += on_chip
            counted[tag.ipu]["off_chip"] += off_chip
        place = self._placement
        ipus = [
            IpuMemory(ipu, place.stages_of(ipu), place.blocks_of(ipu), **counted[ipu]) for ipu in place.ipus
        ]
        return MemoryReport(tuple(ipus), capacity(self._options))

    def _home(self, index: int) -> Tag:
        """Where a value is made; of an input, where it is read first."""
        maker = self._watch.tape.makers.get(index)
        if maker is not None:
            return self._watch.tags[maker] or Tag()
        return next((tag for node, tag in self._tagged if index in node.inputs), Tag())

    def _weight_entries(self) -> Iterable[tuple[str, Tag, int, int]]:
        """(part, place, bytes on the chip, bytes off it) of each parameter and buffer; of tied ones once."""
        locations = {
            kind: _Location.of(self._options, kind) for kind in ("weight", "accumulator", "optimizer")
        }
        homes: dict[int, Tag] = {}  # where each is read first
        for node, tag in self._tagged:
            for index in node.inputs:
                homes.setdefault(self._values[index].base, tag)
        for value in self._values:
            if value.kind not in ("parameter", "buffer") or value.base != value.index:
                continue
            tag = homes.get(value.index, self._placement.tags[0] if self._placement.tags else Tag())
            elements, size = value.num_elements, device_bytes(value)
            on_chip, off_chip = locations["weight"].split(elements, size)
            if off_chip:  # comes on the chip when it is used
                yield "temporary", tag, 0, off_chip
            else:
                yield "weights", tag, on_chip, 0
            if not self._placement.trains or not value.requires_grad:
                continue
            accumulator, slots = _optimizer_bytes(self._optimizer, elements, size)
            yield "gradients", tag, *locations["accumulator"].split(elements, accumulator)
            yield "optimizer_state", tag, *locations["optimizer"].split(elements, slots)

    def _activation_entries(self) -> Iterable[tuple[str, Tag, int, int]]:
        """The same of what the forward pass computes."""
        location = _Location.of(self._options, "activation")
        kept = self._watch.kept if self._placement.trains else set()
        for value, tag, times in self._kept(kept) if kept else ():
            yield "activations", tag, *location.split(value.num_elements, device_bytes(value) * times)
        for tag, peak in self._peaks(kept).items():
            yield "temporary", tag, peak, 0

    def _kept(self, kept: set[int]) -> Iterable[tuple[Value, Tag, int]]:
        """What lasts until the gradients: (value, place, how many micro-batches of it at the same time)."""
        positions = self._positions()
        last = max(positions.values(), default=0)
        default = _BY_STAGE if self._placement.is_pipelined else _NO_RECOMPUTATION
        recomputes = int(self._options._Popart.options.get("autoRecomputation", default)) != _NO_RECOMPUTATION
        for index in sorted(kept):
            tag = self._home(index)
            in_flight = 2 * (last - positions.get(tag.stage, 0)) + 1 if self._placement.is_pipelined else 1
            is_last = positions.get(tag.stage, 0) == last
            if recomputes and not is_last and index not in self._watch.checkpoints:
                in_flight = 1  # computed again for the micro-batch whose gradients come
            yield self._values[index], tag, in_flight
        if self._placement.is_pipelined and recomputes:
            for (index, stage), tag in self._stage_inputs().items():
                yield self._values[index], tag, 2 * (last - positions.get(stage, 0)) + 1

    def _stage_inputs(self) -> dict[tuple[int, int], Tag]:
        """(value, stage that reads it from an earlier one or from the host): where that stage is."""
        entering: dict[tuple[int, int], Tag] = {}
        for node, tag in self._tagged:
            for index in node.inputs:
                base = self._values[self._values[index].base]
                is_earlier = base.kind == "activation" and self._home(base.index).stage != tag.stage
                if base.kind == "input" or is_earlier:
                    entering.setdefault((base.index, tag.stage), tag)
        return entering

    def _positions(self) -> dict[int, int]:
        """The place of each stage in the pipeline; neighbours on one IPU are one."""
        ipu_of = {tag.stage: tag.ipu for tag in self._placement.tags}
        positions: dict[int, int] = {}
        position, before = -1, None
        for stage in sorted(ipu_of):
            if ipu_of[stage] != before:
                position, before = position + 1, ipu_of[stage]
            positions[stage] = position
        return positions

    def _peaks(self, kept: set[int]) -> dict[Tag, int]:
        """The most bytes of other tensors that are alive at the same time, of each IPU."""
        starts: dict[int, list[int]] = defaultdict(list)
        ends: dict[int, list[int]] = defaultdict(list)
        for index, (first, last) in self._lifetimes().items():
            if index not in kept:
                starts[first].append(index)
                ends[last].append(index)
        alive: dict[int, int] = defaultdict(int)
        most: dict[int, int] = defaultdict(int)
        homes: dict[int, Tag] = {}
        for node in range(-1, len(self._watch.tape.nodes) + 1):
            for index in starts[node]:
                tag = self._home(index)
                homes.setdefault(tag.ipu, tag)
                alive[tag.ipu] += device_bytes(self._values[index])
                most[tag.ipu] = max(most[tag.ipu], alive[tag.ipu])
            for index in ends[node]:
                alive[self._home(index).ipu] -= device_bytes(self._values[index])
        return {homes[ipu]: size for ipu, size in most.items()}

    def _lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and last node at which each value of the forward pass is there; views count for what they show."""
        lives: dict[int, tuple[int, int]] = {}
        nodes = self._watch.tape.nodes
        for node in nodes:
            if node.index in self._watch.of_host:
                continue
            for index in (*node.outputs, *node.inputs):
                base = self._values[self._values[index].base]
                if base.kind in ("activation", "input"):
                    first = -1 if base.kind == "input" else node.index
                    lives[base.index] = lives.get(base.index, (first, 0))[0], node.index
        for index in self._watch.results:
            base = self._values[self._values[index].base]
            if base.index in lives:
                lives[base.index] = lives[base.index][0], len(nodes)
        return lives


def device_bytes(value: Value) -> int:
    """The size of a value in the type that it has on an IPU."""
    return value.num_elements * min(ITEM_BYTES[value.dtype], 4)


def _optimizer_bytes(
    optimizer: torch.optim.Optimizer | None, num_elements: int, num_bytes: int
) -> tuple[int, int]:
    """Bytes of the gradients' accumulator, and of the optimizer's state, for one weight."""
    if optimizer is None:
        return num_bytes, 0

    def size_of(attribute: str) -> int:
        dtype = getattr(optimizer, attribute, None)
        return num_elements * dtype.itemsize if isinstance(dtype, torch.dtype) else num_bytes

    accumulator = size_of("accum_type")
    name = type(optimizer).__name__.lower()
    groups = optimizer.param_groups or [optimizer.defaults]
    has_momentum = any(float(group.get("momentum", 0) or 0) for group in groups)
    if name.startswith(("adam", "lamb")):
        return accumulator, size_of("first_order_momentum_accum_type") + size_of(
            "second_order_momentum_accum_type"
        )
    if name.startswith("rmsprop"):
        is_centered = any(group.get("centered") for group in groups)
        return accumulator, size_of("second_order_momentum_accum_type") * (
            1 + is_centered
        ) + num_bytes * has_momentum
    if getattr(optimizer, "use_combined_accum", False):
        return 0, num_bytes  # one tensor is both
    return accumulator, size_of("velocity_accum_type") * has_momentum
