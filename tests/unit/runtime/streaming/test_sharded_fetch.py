"""Weights of several processes are gathered in the order in which they were asked for, whatever finishes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.runtime.streaming.lanes import Lanes, Mark
from portwright.runtime.streaming.sharded_engine import OrderedFetcher
from portwright.runtime.streaming.sharded_unit import shard_units
from portwright.runtime.streaming.unit import Unit, make_units

CPU = torch.device("cpu")


class OtherRanks:
    """Stands for the other processes: says yes, and notes what was gathered."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.gathered: list[str] = []
        self.failure: Exception | None = None

    def agree_on_layer(self, index: int, names: Sequence[str]) -> None:
        if self.failure is not None:
            raise self.failure
        self.gathered.append(names[index])

    def gather(self, whole: Tensor) -> None:
        whole.chunk(2)[1].fill_(1)


class Reached:
    """A mark of a lane that knows where it is; nobody has to wait for it."""

    def __init__(self, lane: str) -> None:
        self.lane = lane

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True


class NotedLanes(Lanes):
    """Notes which lane waits for what."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self._here = threading.local()
        self.waits: list[tuple[str, Mark]] = []

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        self._here.lane = name
        yield
        self._here.lane = "compute"

    def mark(self) -> Mark:
        return Reached(getattr(self._here, "lane", "compute"))

    def wait_for(self, mark: Mark) -> None:
        self.waits.append((getattr(self._here, "lane", "compute"), mark))


@pytest.fixture
def ranks() -> OtherRanks:
    return OtherRanks()


def copy_up(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


Make = Callable[..., tuple[OrderedFetcher, list[Unit]]]


@pytest.fixture
def make(ranks: OtherRanks) -> Iterator[Make]:
    made: list[OrderedFetcher] = []

    def fetcher(
        num_slots: int, unasked: set[int] | None = None, lanes: Lanes | None = None
    ) -> tuple[OrderedFetcher, list[Unit]]:
        changed = threading.Condition()
        net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
        whole = make_units(list(net.named_children()), net, CPU, None, changed)
        units = shard_units(whole, 0, 2, CPU, changed)
        for unit in units:
            unit.host.shadow = torch.full((unit.host.num_bytes,), unit.index + 10, dtype=torch.uint8)
        made.append(
            OrderedFetcher(
                units,
                num_slots,
                lanes or Lanes(CPU),
                copy_up,
                changed,
                ranks,  # type: ignore[arg-type]
                lambda unit: unit.index not in (unasked or set()),
            )
        )
        return made[-1], units

    yield fetcher
    for one in made:
        one.close()


def test_a_layer_that_waits_for_its_update_keeps_its_turn(make: Make, ranks: OtherRanks) -> None:
    fetcher, units = make(3)
    units[1].wanted_version = 1  # its update is under way
    fetcher.fetch(units[0], [units[1], units[2]])
    time.sleep(0.05)
    assert ranks.gathered == ["0"], "a later layer went first"
    units[1].updated(1)
    fetcher.drain(10)
    assert ranks.gathered == ["0", "1", "2"]


def test_what_was_asked_for_is_gathered_though_nobody_wants_it_any_more(
    make: Make, ranks: OtherRanks
) -> None:
    """The other processes may have begun to gather it."""
    fetcher, units = make(2)
    units[1].wanted_version = 1
    fetcher.fetch(units[0], [units[1]])
    threading.Timer(0.05, units[1].updated, [1]).start()
    slot = fetcher.fetch(units[3], [units[0]])
    assert ranks.gathered[:3] == ["0", "1", "3"]
    half = units[3].num_bytes // 2
    assert slot.buffer[0] == 13, "its own part"
    assert slot.buffer[half] == 1, "the other's"


def test_layers_that_wait_for_a_verdict_are_not_asked_for_ahead(make: Make, ranks: OtherRanks) -> None:
    fetcher, units = make(3, unasked={1})
    fetcher.fetch(units[0], [units[1], units[2]])
    fetcher.prepare([units[1], units[2]])
    fetcher.drain(10)
    assert ranks.gathered == ["0", "2"]


def test_a_disagreement_is_raised_where_the_layer_is_used(make: Make, ranks: OtherRanks) -> None:
    fetcher, units = make(2)
    ranks.failure = UserError("the processes do not stream the same layers", "")
    with pytest.raises(UserError, match="the same layers"):
        fetcher.fetch(units[0], [])


def test_an_upload_waits_for_what_was_gathered_there_last_though_nobody_used_it(make: Make) -> None:
    lanes = NotedLanes()
    fetcher, units = make(2, lanes=lanes)
    fetcher.fetch(units[0], [units[1]])
    fetcher.drain(10)
    unused = next(slot for slot in fetcher.slots if slot.unit is units[1])
    gathered = unused.copied
    assert isinstance(gathered, Reached)
    assert gathered.lane == "gather", "it is whole when it is gathered, not when the own part is up"
    slot = fetcher.fetch(units[3], [units[0]])
    assert slot is unused
    assert ("up", gathered) in lanes.waits
    assert ("compute", slot.copied) in lanes.waits
