"""Gradients of layers that are split over processes: averaged on the device, and only the own part goes to the host."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from portwright.runtime.streaming.gradients import (
    CopyDown,
    GradientLayout,
    Gradients,
    Piece,
    _Open,
    norm_of,
)
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.sharded import Ranks
from portwright.runtime.streaming.sharded_unit import Region, ShardedUnit
from portwright.runtime.streaming.unit import Unit


class ShardedLayout(GradientLayout):
    """On the device whole gradients in the masters' type, as DDP adds them up; on the host this process's chunks."""

    def __init__(self, unit: ShardedUnit) -> None:
        self._unit = unit
        self.num_bytes = self.host_bytes = 0
        self._starts: dict[Region, tuple[int, int]] = {}
        for region in unit.regions:
            if region.trains:
                self._starts[region] = (self.num_bytes, self.host_bytes)
                self.num_bytes += unit.size * _gradient_bytes(region)
                self.host_bytes += _gradient_bytes(region)
        self._regions = [unit.region_of[index] for index in unit.trained]
        self._parts = [unit.parts[index] for index in unit.trained]

    def views(self, flat: Tensor) -> list[Tensor]:
        views = []
        for region, part in zip(self._regions, self._parts, strict=True):
            first = self._starts[region][0] + part.first * region.master_dtype.itemsize
            last = first + part.shape.numel() * region.master_dtype.itemsize
            views.append(part.shaped(flat[first:last].view(region.master_dtype)))
        return views

    def host_views(self, place: Tensor) -> list[Tensor]:
        return self._own(place, {region: host for region, (_, host) in self._starts.items()})

    def own_views(self, flat: Tensor) -> list[Tensor]:
        """This process's elements of the gradients on the device."""
        rank = self._unit.rank
        starts = {
            region: start + rank * _gradient_bytes(region) for region, (start, _) in self._starts.items()
        }
        return self._own(flat, starts)

    def _own(self, flat: Tensor, starts: dict[Region, int]) -> list[Tensor]:
        views = []
        for region, part in zip(self._regions, self._parts, strict=True):
            begin, end = part.bounds(self._unit.rank)
            itemsize = region.master_dtype.itemsize
            first = starts[region] + part.offset(self._unit.rank) * itemsize
            views.append(flat[first : first + (end - begin) * itemsize].view(region.master_dtype))
        return views

    def chunks(self, positions: list[int], flat: Tensor, place: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each region of some gradients: the whole region on the device, and the host's bytes for this process's chunk."""
        wanted = {self._regions[position] for position in positions}
        pairs = []
        for region, (start, host) in self._starts.items():
            if region in wanted:
                size = _gradient_bytes(region)
                whole = flat[start : start + self._unit.size * size].view(region.master_dtype)
                pairs.append((whole, place[host : host + size]))
        return pairs


class ShardedGradients(Gradients):
    """Sends a layer's gradients together, once its backward is over."""

    alone_from = float("inf")
    _sums_first = True

    def __init__(
        self,
        units: list[Unit],
        lanes: Lanes,
        copy_down: CopyDown,
        ring: list[Tensor],
        deliver: Callable[[Piece], None],
        ranks: Ranks,
        names: list[str],
    ) -> None:
        self._ranks, self._names = ranks, names
        self._most = max((len(unit.trained) for unit in units), default=0)
        self.averaged: Mark = DONE  # after the last layer's
        super().__init__(units, lanes, copy_down, ring, deliver)

    def _lay_out(self, unit: Unit) -> GradientLayout:
        assert isinstance(unit, ShardedUnit)
        return ShardedLayout(unit)

    def _send(self, unit: Unit, opened: _Open, positions: list[int], is_final: bool = False) -> None:
        layout, place = self._layouts[unit], opened.delivery.buffer
        assert isinstance(layout, ShardedLayout)
        assert place is not None
        has = [position in positions for position in range(self._most)]
        anywhere = self._ranks.agree_on_gradients(unit.index, has, self._names)
        sent = [position for position, is_there in enumerate(anywhere) if is_there]
        for position in set(sent) - set(positions):
            opened.views[position].zero_()
        buffer = self._buffers[opened.buffer_index]
        pairs = layout.chunks(sent, buffer, place)
        made = self._lanes.mark()
        with self._lanes.on("average"):
            self._lanes.wait_for(made)
            own = [(self._ranks.average(whole), on_host) for whole, on_host in pairs]
            if self.wants_norms:
                views = layout.own_views(buffer)
                for position in sent:
                    master = unit.entries[unit.trained[position]].master
                    self.norms[master] = norm_of(views[position], self.is_scaled)
            self.averaged = self._lanes.mark()
        mark: Mark = DONE
        with self._lanes.on("down"):
            self._lanes.wait_for(self.averaged)
            for chunk, on_host in own:
                mark = self._copy_down(on_host, chunk.view(on_host.dtype))
            self._sent[opened.buffer_index].append(self._lanes.mark())
        self._deliver(Piece(opened.delivery, mark, sent, is_final))

    def end(self) -> None:
        super().end()
        self._ranks.agree_on_gradients(-1, [False] * self._most, self._names)


def host_bytes(units: list[Unit]) -> int:
    """Bytes of this process's gradients of the largest layer."""
    layouts = [ShardedLayout(unit) for unit in units if isinstance(unit, ShardedUnit)]
    return max((layout.host_bytes for layout in layouts), default=0)


def _gradient_bytes(region: Region) -> int:
    return region.chunk * region.master_dtype.itemsize
