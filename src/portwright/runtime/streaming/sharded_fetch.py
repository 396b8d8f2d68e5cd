"""Weights on their way to the device where each process has a part of them: uploaded and gathered in the same order everywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from portwright.runtime.streaming.fetch import CopyUp, Fetcher, Slot
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.sharded import Ranks
from portwright.runtime.streaming.sharded_unit import ShardedUnit
from portwright.runtime.streaming.unit import Unit

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
