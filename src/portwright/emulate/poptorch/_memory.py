"""What a step needs of each IPU's memory: weights, gradients, optimizer state, activations. All of it is estimated.

Counted are the tensors of the trace in the types that an IPU has (64 bits become 32). Not counted are the code of the program,
exchange buffers, padding and the working space of single ops, which on hardware come on top.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from portwright.emulate import target_of
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._placement import Placement, Tag
from portwright.graph.graph import ITEM_BYTES, Value

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch


class Uses:
    """The values of one trace, by the places that use them."""

    def __init__(self, watch: Watch) -> None:
        self.tags, self.results = watch.tags, watch.results
        self.nodes, self.values = watch.tape.nodes, watch.tape.values
        self._makers, self._of_host = watch.tape.makers, watch.of_host

    def weights(self) -> Iterator[tuple[Value, bool]]:
        """Parameters and buffers, and whether gradients are computed for them; tied ones once."""
        for value in self.values:
            if value.kind in ("parameter", "buffer") and value.base == value.index:
                yield value, value.requires_grad

    def weight_homes(self) -> dict[int, Tag]:
        """Where each weight is read first."""
        homes: dict[int, Tag] = {}
        for node, tag in zip(self.nodes, self.tags, strict=True):
            for index in node.inputs:
                value = self.values[index]
                if tag is not None and value.kind in ("parameter", "buffer"):
                    homes.setdefault(value.base, tag)
        return homes

    def home(self, index: int) -> Tag:
        """Where a value is made; of an input, where it is read first."""
        maker = self._makers.get(index)
        if maker is None:
            tags = (
                t for n, t in zip(self.nodes, self.tags, strict=True) if index in n.inputs and t is not None
            )
            return next(tags, Tag())
        return self.tags[maker] or Tag()

    def stage_inputs(self) -> dict[tuple[int, int], Tag]:
        """(value, stage that reads it from an earlier one or from the host): where that stage is."""
        entering: dict[tuple[int, int], Tag] = {}
        for node, tag in zip(self.nodes, self.tags, strict=True):
            for index in node.inputs:
                value = self.values[index]
                base = self.values[value.base]
                if tag is None or base.kind not in ("activation", "input"):
                    continue
                if base.kind == "input" or self.home(base.index).stage != tag.stage:
                    entering.setdefault((base.index, tag.stage), tag)
        return entering

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and last node at which each value of the forward pass is there; views count for what they show."""
        lives: dict[int, tuple[int, int]] = {}
        nodes, values = self.nodes, self.values
        for node in nodes:
            if node.index in self._of_host:
                continue
            for index in (*node.outputs, *node.inputs):
                base = values[index].base
                if values[base].kind in ("activation", "input"):
                    first = -1 if values[base].kind == "input" else node.index
                    lives[base] = lives.get(base, (first, 0))[0], node.index
        for index in self.results:
            base = values[index].base
            if base in lives:
                lives[base] = lives[base][0], len(nodes)
        return lives


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

    def __str__(self) -> str:
        parts = ", ".join(f"{name.replace('_', ' ')} {_mb(getattr(self, name))}" for name in _PARTS)
        return f"{self.name}: {_mb(self.total)} ({parts})"

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
    """The memory of each IPU of one replica; prints as a table, and goes to JSON."""

    ipus: tuple[IpuMemory, ...]
    capacity_bytes: int  # of one IPU
    label: str = LABEL

    def __str__(self) -> str:
        return "\n".join([*map(str, self.ipus), f"of {_mb(self.capacity_bytes)} on each IPU; {self.label}"])

    def as_json(self) -> dict[str, Any]:
        ipus = [{**asdict(one), "total": one.total} for one in self.ipus]
        return {"capacity_bytes": self.capacity_bytes, "label": self.label, "ipus": ipus}


def check_memory(
    watch: Watch, options: Any, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer | None
) -> MemoryReport:
    """Accounts for a traced model; raises Error for the first IPU that cannot hold its part."""
    report = _Account(watch, options, weights, optimizer).report()
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

    def __init__(
        self,
        watch: Watch,
        options: Any,
        weights: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._watch, self._options, self._optimizer = watch, options, optimizer
        self._placement: Placement = watch.placement
        self._uses = Uses(watch)
        self._trains = self._placement.trains

    def report(self) -> MemoryReport:
        counted: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*_PARTS, "off_chip"), 0))
        for part, tag, on_chip, off_chip in self._entries():
            counted[tag.ipu][part] += on_chip
            counted[tag.ipu]["off_chip"] += off_chip
        place = self._placement
        ipus = [
            IpuMemory(ipu, place.stages_of(ipu), place.blocks_of(ipu), **counted[ipu]) for ipu in place.ipus
        ]
        return MemoryReport(tuple(ipus), capacity(self._options))

    def _entries(self) -> Iterable[tuple[str, Tag, int, int]]:
        """(part, place, bytes on the chip, bytes off it) of each tensor."""
        yield from self._weight_entries()
        yield from self._activation_entries()

    def _weight_entries(self) -> Iterable[tuple[str, Tag, int, int]]:
        locations = {
            kind: _Location.of(self._options, kind) for kind in ("weight", "accumulator", "optimizer")
        }
        homes = self._uses.weight_homes()
        for value, trained in self._uses.weights():
            tag = homes.get(value.index, self._placement.tags[0] if self._placement.tags else Tag())
            elements, size = value.num_elements, device_bytes(value)
            on_chip, off_chip = locations["weight"].split(elements, size)
            if off_chip:  # comes on the chip when it is used
                yield "temporary", tag, 0, off_chip
            else:
                yield "weights", tag, on_chip, 0
            if not self._trains or not trained:
                continue
            accumulator, slots = _optimizer_bytes(self._optimizer, elements, size)
            yield "gradients", tag, *locations["accumulator"].split(elements, accumulator)
            yield "optimizer_state", tag, *locations["optimizer"].split(elements, slots)

    def _activation_entries(self) -> Iterable[tuple[str, Tag, int, int]]:
        watch = self._watch
        location = _Location.of(self._options, "activation")
        kept = watch.kept if self._trains else set()
        if kept:
            for value, tag, times in self._kept(kept):
                on_chip, off_chip = location.split(value.num_elements, device_bytes(value) * times)
                yield "activations", tag, on_chip, off_chip
        for tag, peak in self._peaks(kept).items():
            yield "temporary", tag, peak, 0

    def _kept(self, kept: set[int]) -> Iterable[tuple[Value, Tag, int]]:
        """What lasts until the gradients: (value, place, how many micro-batches of it at the same time)."""
        uses, values = self._uses, self._uses.values
        positions = self._positions()
        last = max(positions.values(), default=0)
        default = _BY_STAGE if self._placement.is_pipelined else _NO_RECOMPUTATION
        recomputes = int(self._options._Popart.options.get("autoRecomputation", default)) != _NO_RECOMPUTATION
        entering = uses.stage_inputs() if self._placement.is_pipelined and recomputes else {}
        for index in sorted(kept):
            tag = uses.home(index)
            in_flight = 2 * (last - positions.get(tag.stage, 0)) + 1 if self._placement.is_pipelined else 1
            is_last = positions.get(tag.stage, 0) == last
            if recomputes and not is_last and index not in self._watch.checkpoints:
                in_flight = 1  # computed again for the micro-batch whose gradients come
            yield values[index], tag, in_flight
        for (index, stage), tag in entering.items():
            in_flight = 2 * (last - positions.get(stage, 0)) + 1
            yield values[index], tag, in_flight

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
        for index, (first, last) in self._uses.lifetimes().items():
            if index not in kept:
                starts[first].append(index)
                ends[last].append(index)
        alive: dict[int, int] = defaultdict(int)
        most: dict[int, int] = defaultdict(int)
        homes: dict[int, Tag] = {}
        for node in range(-1, len(self._uses.nodes) + 1):
            for index in starts[node]:
                tag = self._uses.home(index)
                homes.setdefault(tag.ipu, tag)
                alive[tag.ipu] += device_bytes(self._uses.values[index])
                most[tag.ipu] = max(most[tag.ipu], alive[tag.ipu])
            for index in ends[node]:
                alive[self._uses.home(index).ipu] -= device_bytes(self._uses.values[index])
        return {homes[ipu]: size for ipu, size in most.items()}


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
