from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from portwright.runtime.streaming import fetch
from portwright.runtime.streaming.fetch import CallOrder, Fetcher
from portwright.runtime.streaming.lanes import Lanes
from portwright.runtime.streaming.layers import find_layers
from portwright.runtime.streaming.unit import Unit, make_units

CPU = torch.device("cpu")


class Bench:
    """Layers whose bytes are their number, a fetcher over them, and what it copied."""

    def __init__(self, count: int, num_slots: int) -> None:
        self.changed = threading.Condition()
        net = nn.Sequential(*(nn.Linear(4, 4 + index % 3) for index in range(count)))
        self.units = make_units(find_layers(net), net, CPU, None, self.changed)
        for unit in self.units:
            unit.shadow = torch.full((unit.num_bytes,), unit.index, dtype=torch.uint8)
        self.copies: list[int] = []
        self.fails_at: int | None = None
        self.fetcher = Fetcher(self.units, num_slots, Lanes(CPU), self._copy, self.changed)

    def _copy(self, target: Tensor, source: Tensor) -> None:
        if int(source[0]) == self.fails_at:
            raise RuntimeError("the bus is broken")
        self.copies.append(int(source[0]))
        target.copy_(source)

    def fetch(self, index: int, *upcoming: int) -> Tensor:
        slot = self.fetcher.fetch(self.units[index], [self.units[i] for i in upcoming])
        assert slot.unit is self.units[index]
        return slot.buffer[: self.units[index].num_bytes]


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.fetcher.close()


def test_what_is_asked_for_early_is_there(benches: list[Bench]) -> None:
    benches.append(bench := Bench(5, 3))
    for index in range(5):
        assert bool((bench.fetch(index, *range(index + 1, 5), *range(5)) == index).all())
    assert bench.fetcher.num_late == 1, "only the first layer was not asked for before"
    assert bench.fetcher.num_bytes == 3 * max(unit.num_bytes for unit in bench.units)


def test_there_are_never_more_slots_than_layers(benches: list[Bench]) -> None:
    benches.append(bench := Bench(2, 9))
    assert len(bench.fetcher.slots) == 2
    benches.append(alone := Bench(1, 3))
    for _ in range(3):
        assert bool((alone.fetch(0, 0, 0) == 0).all())
    assert alone.copies == [0]


def test_a_new_version_is_copied_once_it_is_there(benches: list[Bench]) -> None:
    benches.append(bench := Bench(3, 2))
    bench.fetch(0, 1)
    unit = bench.units[0]
    unit.wanted_version += 1
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(int(bench.fetch(0)[0])))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "the old weights were given"
    unit.shadow.fill_(77)
    unit.updated(1)
    thread.join(10)
    assert found == [77]


def test_a_layer_that_waits_for_its_update_holds_up_no_other(benches: list[Bench]) -> None:
    benches.append(bench := Bench(4, 3))
    bench.units[0].wanted_version += 1
    bench.fetcher.prepare([bench.units[0], bench.units[1]])
    assert bool((bench.fetch(1) == 1).all())
    bench.units[0].updated(1)
    assert bool((bench.fetch(0) == 0).all())


def test_a_failed_copy_is_raised_and_can_be_tried_again(benches: list[Bench]) -> None:
    benches.append(bench := Bench(3, 2))
    bench.fails_at = 1
    bench.fetch(0, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the bus is broken"):
            bench.fetch(1, 2)
    bench.fails_at = None
    assert bool((bench.fetch(1, 2) == 1).all())


def test_a_failed_update_is_raised_where_the_layer_is_wanted(benches: list[Bench]) -> None:
    benches.append(bench := Bench(3, 2))
    bench.units[1].wanted_version += 1
    bench.fetcher.prepare([bench.units[1]])
    bench.units[1].fail(ValueError("the optimizer is broken"))
    with pytest.raises(ValueError, match=r"the optimizer is broken"):
        bench.fetch(1)
    assert bool((bench.fetch(0) == 0).all())


def test_a_lost_request_is_an_error_and_no_standstill(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LOOK_SECONDS", 0.02)
    benches.append(bench := Bench(3, 2))
    bench.units[1].wanted_version += 1  # so that its request stays
    bench.fetcher.prepare([bench.units[1]])
    bench.fetcher._pending.clear()
    with pytest.raises(RuntimeError, match=r"nobody is fetching the layer '1': .*1 version 1, copied False"):
        bench.fetch(1)


def test_a_closed_fetcher_gives_an_error_and_no_standstill(benches: list[Bench]) -> None:
    benches.append(bench := Bench(3, 2))
    bench.fetch(0)
    bench.fetcher.close()
    with pytest.raises(RuntimeError, match=r"the layer '1' is called after its session was closed"):
        bench.fetch(1)


def test_forgotten_weights_are_copied_again(benches: list[Bench]) -> None:
    benches.append(bench := Bench(3, 3))
    bench.fetch(0, 1, 2)
    bench.fetcher.forget()
    bench.units[0].shadow.fill_(9)
    assert bool((bench.fetch(0) == 9).all())


@given(
    calls=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    guesses=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=40, max_size=40),
    num_slots=st.integers(2, 4),
    changes=st.lists(st.integers(0, 5), min_size=40, max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_any_order_and_any_wrong_guess_give_the_right_weights(
    calls: list[int], guesses: list[list[int]], num_slots: int, changes: list[int]
) -> None:
    bench = Bench(6, num_slots)
    values = list(range(6))
    try:
        for number, (index, guess, changed) in enumerate(zip(calls, guesses, changes, strict=False)):
            buffer = bench.fetch(index, *guess)
            assert bool((buffer == values[index]).all())
            unit = bench.units[changed]
            unit.wanted_version += 1
            values[changed] = 100 + number
            unit.shadow.fill_(values[changed])
            unit.updated(unit.wanted_version)
            assert changed == index or bool((buffer == values[index]).all()), "the slot in use was taken"
    finally:
        bench.fetcher.close()


def names(units: Iterator[Unit], count: int) -> list[int]:
    return [unit.index for _, unit in zip(range(count), units, strict=False)]


def test_the_order_of_the_last_pass_is_expected_again(benches: list[Bench]) -> None:
    benches.append(bench := Bench(4, 2))
    u = bench.units
    order = CallOrder(u)
    assert names(order.called(u[0], trains=True), 3) == [1, 2, 3]
    for index in (2, 1, 2):
        order.called(u[index], trains=True)
    assert names(order.returned(), 4) == [1, 2, 0, 0], "backward, then the next pass"
    assert names(order.next_pass(), 4) == [0, 2, 1, 2]
    order.begin()
    assert names(order.called(u[0], trains=True), 7) == [2, 1, 2, 2, 1, 2, 0]
    order.begin()
    order.begin()
    assert names(order.called(u[0], trains=False), 2) == [0], "a pass of one call is a pass"
