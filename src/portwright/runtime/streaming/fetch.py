"""Weights on their way to the device: a few slots, filled ahead of use by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.unit import Unit

CopyUp = Callable[[Tensor, Tensor], None]  # device bytes, host bytes; in the current lane

_LOOK_SECONDS = 10.0  # after which a thread that waits for a layer checks that someone works on it


class Slot:
    """Device memory for one layer's weights, and which layer has or will have it."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.unit: Unit | None = None
        self.version = -1
        self.free: list[Mark] = []  # of the work that used what was here before
        self.busy: Mark = DONE  # of other lanes' work on what is here
        self.copied: Mark | None = DONE  # None: promised, and not yet given to the lane
        self.failure: BaseException | None = None

    def holds(self, unit: Unit) -> bool:
        return self.unit is unit and self.version == unit.wanted_version


class Fetcher:
    """Keeps the slots full of what is needed next.

    `fetch` is called where a layer is needed; `upcoming` are the layers that will be needed after it, soonest first. A
    slot is taken from the layer whose next use is farthest away. The thread takes the first request whose layer is
    updated: one that waits for the optimizer holds up nobody else.
    """

    _may_cancel = True  # a request that a newer one makes useless

    def __init__(
        self,
        units: list[Unit],
        num_slots: int,
        lanes: Lanes,
        copy_up: CopyUp,
        changed: threading.Condition,
    ) -> None:
        self._lanes, self._copy_up, self._changed = lanes, copy_up, changed
        size = max(unit.num_bytes for unit in units)
        num_slots = min(num_slots, len(units))
        self.slots = [
            Slot(torch.empty(size, dtype=torch.uint8, device=lanes.device)) for _ in range(num_slots)
        ]
        self.num_bytes = size * num_slots
        self.num_late = 0  # fetches that had not been asked for ahead
        self._pending: list[Slot] = []
        self._filling: Slot | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="portwright-fetch", daemon=True)
        self._thread.start()

    def fetch(self, unit: Unit, upcoming: Iterable[Unit]) -> Slot:
        """The slot with the layer's weights, for use in the current lane; asks for the next layers."""
        if self._is_closed:
            raise RuntimeError(f"the layer '{unit.name}' is called after its session was closed.")
        slot = self._slot_of(unit)
        soon = _first_distinct(upcoming, unit, len(self.slots) - 1)
        if slot is None:
            self.num_late += 1
            slot = self._request(unit, soon)
        for position, other in enumerate(soon):
            if self._slot_of(other) is None and self._may_ask_for(other):
                self._request(other, [unit, *soon[:position]])
        with self._changed:
            while not self._changed.wait_for(lambda: slot.copied is not None, timeout=_LOOK_SECONDS):
                self._check_request(unit, slot)
            failure = slot.failure
            if failure is not None:
                slot.unit = None
                raise failure
        assert slot.copied is not None
        self._lanes.wait_for(slot.copied)
        return slot

    def _check_request(self, unit: Unit, slot: Slot) -> None:
        """Called after a long wait: raises instead of waiting for ever."""
        if slot not in self._pending and slot is not self._filling:
            raise RuntimeError(f"nobody is fetching the layer '{unit.name}': {self._describe()}")
        if not self._thread.is_alive():
            raise RuntimeError(f"the thread that fetches layers is gone: {self._describe()}")
        self._changed.notify_all()

    def _describe(self) -> str:
        return "; ".join(
            f"{slot.unit.name if slot.unit else None} version {slot.version}, copied {slot.copied is not None}"
            for slot in self.slots
        )

    def prepare(self, upcoming: Iterable[Unit]) -> None:
        """Asks for the layers that are needed next, where none is in use."""
        soon = _first_distinct(upcoming, None, len(self.slots))
        for position, unit in enumerate(soon):
            if self._slot_of(unit) is None and self._may_ask_for(unit):
                self._request(unit, soon[:position])

    def _may_ask_for(self, unit: Unit) -> bool:
        """Whether the layer may be asked for before it is needed."""
        return True

    def adopt(self, slot: Slot, unit: Unit, copied: Mark) -> None:
        """The slot gets the layer's newest weights on the device itself."""
        slot.unit, slot.version, slot.copied, slot.busy = unit, unit.wanted_version, copied, copied

    def slot_bound_to(self, unit: Unit) -> Slot | None:
        """The slot that the layer was last used from, whatever version it has."""
        return next((slot for slot in self.slots if slot.unit is unit and slot.copied is not None), None)

    def _slot_of(self, unit: Unit) -> Slot | None:
        return next((slot for slot in self.slots if slot.holds(unit)), None)

    def _request(self, unit: Unit, needed: list[Unit]) -> Slot:
        """Promises the layer a slot that none of `needed` is in, the soonest needed first."""
        rank = {other.index: position for position, other in enumerate(needed)}

        def distance(slot: Slot) -> int:
            if slot.unit is None or not slot.holds(slot.unit):
                return len(needed) + 1  # stale
            return rank.get(slot.unit.index, len(needed))

        victim = max(self.slots, key=distance)
        with self._changed:
            if victim in self._pending and self._may_cancel:
                self._pending.remove(victim)
            else:  # two copies into one slot must not overtake each other
                self._changed.wait_for(lambda: victim.copied is not None)
                # All work that uses the old weights was given to the device before now.
                victim.free = [self._lanes.mark(), victim.busy]
                victim.busy = DONE
            victim.unit, victim.version = unit, unit.wanted_version
            victim.copied, victim.failure = None, None
            self._pending.append(victim)
            self._changed.notify_all()
        return victim

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._ready() is not None)
                if self._is_closed:
                    return
                slot = self._ready()
                assert slot is not None
                self._pending.remove(slot)
                self._filling = slot
            unit, failure, copied = slot.unit, None, DONE
            assert unit is not None
            try:
                if unit.failure is not None:
                    raise unit.failure
                copied = self._fill(slot, unit)
            except BaseException as error:  # raised where the layer is used
                failure = error
            with self._changed:
                slot.failure, slot.copied, self._filling = failure, copied, None
                self._changed.notify_all()

    def _fill(self, slot: Slot, unit: Unit) -> Mark:
        with self._lanes.on("up"):
            for mark in slot.free:
                self._lanes.wait_for(mark)
            self._copy_up(slot.buffer[: unit.num_bytes], unit.shadow)
            return self._lanes.mark()

    def _ready(self) -> Slot | None:
        return next((slot for slot in self._pending if slot.unit and slot.unit.has(slot.version)), None)

    def forget(self) -> None:
        """Marks all slots as outdated: the host's weights were changed from outside."""
        with self._changed:
            self._changed.wait_for(lambda: all(slot.copied is not None for slot in self.slots))
            for slot in self.slots:
                slot.unit = None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()


def _first_distinct(units: Iterable[Unit], but: Unit | None, count: int) -> list[Unit]:
    found: list[Unit] = []
    for unit in units:
        if len(found) >= count:
            break
        if unit is not but and unit not in found:
            found.append(unit)
    return found


class CallOrder:
    """Predicts which layer comes next: as in the pass before; before any, in the order of the model."""

    def __init__(self, units: list[Unit]) -> None:
        self.last: list[Unit] = list(units)  # calls of the last whole pass
        self._calls: list[Unit] = []
        self._num_returned = 0

    def begin(self) -> None:
        """A new pass over the model."""
        if self._calls:
            self.last = self._calls
        self._calls, self._num_returned = [], 0

    def called(self, unit: Unit, trains: bool) -> Iterator[Unit]:
        """Notes a call of the forward pass; gives what follows it."""
        self._calls.append(unit)
        rest = self.last[len(self._calls) :]
        return chain(rest, reversed(self.last) if trains else (), self.last)

    def next_pass(self) -> Iterator[Unit]:
        """What the next pass begins with."""
        return iter(self._calls or self.last)

    def returned(self) -> Iterator[Unit]:
        """Notes that backward has come to a call; gives what follows it."""
        self._num_returned += 1
        left = max(0, len(self._calls) - self._num_returned)
        return chain(reversed(self._calls[:left]), self._calls)
