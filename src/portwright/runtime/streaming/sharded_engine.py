"""Weight streaming in several processes: each has a part of every layer in host memory and computes on a part of the batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.extra_optimizers import Lion, UncorrectedAdam
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.fetch import CopyUp, Fetcher, Slot
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
from portwright.runtime.streaming.sharded_unit import Part, Region, ShardedUnit, shard_units
from portwright.runtime.streaming.unit import Unit, make_units

_POLL_SECONDS = 2e-4  # a layer's upload takes some milliseconds


class OrderedFetcher(Fetcher):
    """Fills requests strictly in their order, and every one of them: the other processes have made the same.

    `may_ask_for` must be false of a layer whose update waits for something that the thread of the computation has still to do: it
    would hold up all requests after it.
    """

    _may_cancel = False

    def __init__(
        self,
        units: list[Unit],
        num_slots: int,
        lanes: Lanes,
        copy_up: CopyUp,
        changed: threading.Condition,
        ranks: Ranks,
        may_ask_for: Callable[[Unit], bool],
    ) -> None:
        self._ranks, self._asks = ranks, may_ask_for
        self._names = [unit.name for unit in units]
        self._gathered: dict[Slot, Mark] = {}  # when what came into a slot last was whole
        super().__init__(units, num_slots, lanes, copy_up, changed)

    def _may_ask_for(self, unit: Unit) -> bool:
        return self._asks(unit)

    def _ready(self) -> Slot | None:
        slot = self._pending[0] if self._pending else None
        is_updated = slot is not None and slot.unit is not None and slot.unit.has(slot.version)
        return slot if is_updated else None

    def _fill(self, slot: Slot, unit: Unit) -> Mark:
        assert isinstance(unit, ShardedUnit)
        with self._lanes.on("up"):
            # Waits for the last gathering too: no one else waited for a layer that was fetched and never used.
            for mark in (*slot.free, self._gathered.get(slot, DONE)):
                self._lanes.wait_for(mark)
            for region in unit.regions:
                self._copy_up(region.own(slot.buffer, unit.rank), region.on_host(unit.host.shadow))
            uploaded = self._lanes.mark()
        # A collective that is on a GPU before it can run there may stand in the way of the other kind, in another order than
        # elsewhere, and both would wait for ever. Sleeping, since the cores are the optimizer's.
        while not uploaded.query():
            time.sleep(_POLL_SECONDS)
        self._ranks.agree_on_layer(unit.index, self._names)
        with self._lanes.on("gather"):
            self._lanes.wait_for(uploaded)
            for region in unit.regions:
                self._ranks.gather(region.whole(slot.buffer, unit.size))
            self._gathered[slot] = self._lanes.mark()
            return self._gathered[slot]

    def drain(self, timeout_seconds: float) -> None:
        """Fills what has been asked for: the other processes wait for this one's part."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(slot.copied is not None for slot in self.slots), timeout_seconds
            )


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


# Each element of a weight is updated from its own gradient and state alone, so a part of a weight is as good as a weight.
_ELEMENTWISE = frozenset(
    {
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
        Lion,
        UncorrectedAdam,
    }
)
_CLOSING_SECONDS = 10.0  # for the other processes to take their part in what was asked for last


class ShardedStreaming(Streaming):
    """Like Streaming, but the masters in the model have no values: these are in `shards`, and whole only on the device.

    Gradients are averaged over the processes, norms and losses are those of all of them.
    """

    def __init__(
        self,
        net: nn.Module,
        device: torch.device,
        options: StreamingSection,
        note: Callable[[str], None],
        ranks: Ranks,
        *,
        half: torch.dtype | None = None,
    ) -> None:
        self._ranks = ranks
        self.holds = torch.zeros((), device=device)  # 1 once a loss or a norm was not finite in any process
        self._undecided: set[Unit] = set()  # whose updates wait for this step's verdict
        super().__init__(net, device, options, note, half=half, may_update_here=False)
        self.shards: dict[nn.Parameter, tuple[nn.Parameter, Part]] = {
            entry.master: (own.master, part)
            for unit in self._sharded()
            for entry, own, part in zip(unit.entries, unit.host.entries, unit.parts, strict=True)
        }

    def _sharded(self) -> list[ShardedUnit]:
        return [unit for unit in self.units if isinstance(unit, ShardedUnit)]

    # -- what is made otherwise -----------------------------------------------------------------------------

    def _make_units(self, layers: list[tuple[str, nn.Module]]) -> list[Unit]:
        self._ranks.make_equal([*self.net.parameters(), *self.net.buffers()])
        device, changed = self.lanes.device, self._changed
        units = make_units(layers, self.net, device, self._half, changed)
        return shard_units(units, self._ranks.rank, self._ranks.size, device, changed)

    def _make_fetcher(self) -> Fetcher:
        return OrderedFetcher(
            self.units,
            self._options.slots,
            self.lanes,
            self._copy_up,
            self._changed,
            self._ranks,
            lambda unit: unit not in self._undecided,
        )

    def _gradient_bytes(self, trained: list[Unit]) -> int:
        return host_bytes(trained)

    def _make_gradients(self, trained: list[Unit], ring: list[Tensor], num_buffers: int) -> Gradients:
        names = [unit.name for unit in self.units]
        return ShardedGradients(trained, self.lanes, self._copy_down, ring, self._deliver, self._ranks, names)

    # -- a step ---------------------------------------------------------------------------------------------

    def train_with(self, optimizer: torch.optim.Optimizer, **settings: Any) -> torch.optim.Optimizer:
        """Like Streaming.train_with; the optimizer trains the flat shards instead of the layers' weights from now on."""
        if type(optimizer) not in _ELEMENTWISE and any(unit.trained for unit in self.units):
            raise UserError(
                f"{type(optimizer).__name__} may look at whole weights, and each of the {self._ranks.size} processes streams a part "
                "of every weight.",
                "Use a rule that works element by element, such as AdamW, SGD or Lion, start one process, or use "
                "runconfig.execution: resident with runconfig.distributed: fsdp.",
            )
        for group in optimizer.param_groups:
            group["params"] = [self._shard_of(optimizer, parameter) for parameter in group["params"]]
        return super().train_with(optimizer, **settings)

    def _shard_of(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> nn.Parameter:
        if parameter not in self.shards:
            return parameter
        shard, part = self.shards[parameter]
        for key, value in optimizer.state.pop(parameter, {}).items():
            is_split = isinstance(value, Tensor) and value.shape == part.shape
            optimizer.state[shard][key] = part.cut(value, self._ranks.rank).clone() if is_split else value
        return shard

    def begin_step(self, number: int) -> None:
        self._undecided.clear()  # an error may have ended the step before
        super().begin_step(number)
        self.share_buffers()

    def share_buffers(self) -> None:
        """Gives the first process's buffers to all, as DDP does before a step."""
        self._ranks.send_from_first(self.net.buffers())

    def tell_loss(self, loss: Tensor) -> None:
        total = self._ranks.sum(loss.detach().float().clone())
        self.hold_if_not_finite(total)
        super().tell_loss(total)

    def hold_if_not_finite(self, value: Tensor) -> None:
        """Where the agreed value is not finite, weights outside the layers are not updated either; the host does not wait."""
        bad = (~torch.isfinite(value.detach())).to(self.holds)
        self.holds.copy_(torch.maximum(self.holds, bad))

    def changed(self) -> None:
        super().changed()
        self.holds.zero_()

    def _deliver(self, piece: Piece) -> None:
        if self.needs_verdict and self._is_last_pass and piece.is_final:
            self._undecided.add(piece.delivery.unit)
        super()._deliver(piece)

    def _deliver_left_over(self) -> None:
        if self.needs_verdict:
            self._undecided |= self._only_before
        super()._deliver_left_over()

    def decide(self, factor: Tensor) -> None:
        super().decide(factor)
        self._undecided.clear()
        self._fetcher.prepare(self._order.next_pass())

    def gradient_norms(self) -> dict[Tensor, Tensor]:
        """Norms of whole gradients: the squares of the parts' norms are summed over the processes."""
        if isinstance(self._gradients, ShardedGradients):
            self.lanes.wait_for(self._gradients.averaged)
        own: Mapping[Tensor, Tensor] = super().gradient_norms()
        masters = [master for master in self.shards if master in own]
        if not masters:
            return {}
        squares = torch.stack([own[master].double() for master in masters]).square()
        norms = self._ranks.sum(squares).sqrt()
        return {
            master: norm.to(own[master].dtype) for master, norm in zip(masters, norms.unbind(), strict=True)
        }

    def describe(self) -> str:
        return f"{super().describe()[:-1]} (the share of one process of {self._ranks.size})."

    # -- whole weights --------------------------------------------------------------------------------------

    def whole(self, master: nn.Parameter, own: Tensor) -> Tensor:
        """A tensor of a weight's shape, of which each process has a flat part, on the host; all processes must ask."""
        part = self.shards[master][1]
        flat = torch.empty(part.shape.numel(), dtype=own.dtype)
        self._ranks.assemble(flat, own.detach(), [part.bounds(rank) for rank in range(self._ranks.size)])
        return part.shaped(flat)

    def own_part(self, master: nn.Parameter, whole: Tensor) -> Tensor:
        return self.shards[master][1].cut(whole, self._ranks.rank)

    def close(self) -> None:
        if isinstance(self._fetcher, OrderedFetcher):
            self._fetcher.drain(_CLOSING_SECONDS)
        super().close()
