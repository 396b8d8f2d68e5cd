from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import streaming_nets as nets
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from portwright.runtime.streaming.gradients import Delivery, Piece
from portwright.runtime.streaming.host_store import HostStore
from portwright.runtime.streaming.lanes import DONE
from portwright.runtime.streaming.layers import find_layers
from portwright.runtime.streaming.native.adam import load_native
from portwright.runtime.streaming.unit import Unit, make_units
from portwright.runtime.streaming.unit_update import NativeUpdate, TorchUpdate, part_of
from portwright.runtime.streaming.updates import Step, Updates, Verdict

CPU = torch.device("cpu")
pytestmark = pytest.mark.timeout(60)


class Options:
    store: str | None = None
    pinned_memory: int | None = None


class Recorder:
    """An update that keeps its unit's history as numbers."""

    def __init__(self) -> None:
        self.done: list[float] = []  # sums of gradients times factors
        self.undoable: list[float] = []
        self.gate: threading.Event | None = None
        self.error: BaseException | None = None

    def apply(self, grads: Any, rates: Any, factor: float, *, undoable: bool) -> None:
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        (self.undoable if undoable else self.done).append(
            sum(float(g.sum()) for g in grads.values()) * factor
        )

    def keep(self) -> None:
        self.done += self.undoable
        self.undoable = []

    def undo(self) -> None:
        self.undoable = []

    def adopt(self) -> None: ...

    def prefetch(self, positions: Any) -> None: ...

    def count(self, positions: Any) -> None: ...


class Bench:
    def __init__(self, count: int = 3, adds_up: bool = False) -> None:
        net = nets.Stack(count)
        layers = find_layers(net, ["blocks.*"])
        self.units = make_units(layers, net, CPU, None, threading.Condition())
        self.recorders = {unit: Recorder() for unit in self.units}
        self.given_back: list[Tensor] = []
        self.failures: list[BaseException] = []
        self.updates = Updates(
            self.recorders,
            self.given_back.append,
            self.failures.append,
            lambda unit: unit.index,
            adds_up=adds_up,
        )

    def submit(self, step: Step, index: int, *values: float, is_last: bool = True) -> Delivery:
        """Gradients of as many pieces as there are values; the last one is final."""
        unit, place = self.units[index], torch.empty(len(values))
        views = [place[position] for position in range(len(values))]
        delivery = Delivery(unit, place, views)
        for position, value in enumerate(values):
            views[position].fill_(value)
            piece = Piece(delivery, DONE, [position], position == len(values) - 1)
            self.updates.submit(step, piece, is_last)
        return delivery

    def decide(self, step: Step, factor: float) -> None:
        self.updates.decide(step, Verdict(torch.tensor(factor)))

    def done(self, index: int) -> list[float]:
        return self.recorders[self.units[index]].done


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*args: Any, **kwargs: Any) -> Bench:
        made.append(Bench(*args, **kwargs))
        return made[-1]

    yield build
    for bench in made:
        bench.updates.close()


def speculative(number: int = 1, **more: Any) -> Step:
    return Step(number, [0.1], needs_verdict=True, speculates=True, **more)


def test_each_piece_is_applied_and_the_place_given_back_once(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.submit(Step(1, [0.1]), 0, 1.0, 2.0, 3.0)
    bench.updates.wait_idle()
    assert bench.done(0) == [1.0, 2.0, 3.0]
    assert len(bench.given_back) == 1
    bench.units[0].wait_updated()


def test_the_first_layer_goes_first_when_there_is_a_backlog(make: Callable[..., Bench]) -> None:
    bench = make(4)
    order: list[int] = []
    for unit, recorder in bench.recorders.items():
        recorder.apply = lambda *_, unit=unit, **__: order.append(unit.index)  # type: ignore[method-assign]
    entered, gate = threading.Event(), threading.Event()

    def busy(*_: Any, **__: Any) -> None:
        entered.set()
        assert gate.wait(10)
        order.append(3)

    bench.recorders[bench.units[3]].apply = busy  # type: ignore[method-assign]
    bench.submit(Step(1, [0.1]), 3, 1.0)
    assert entered.wait(10)
    for index in (2, 0, 1):
        bench.submit(Step(1, [0.1]), index, 1.0)
    gate.set()
    bench.updates.wait_idle()
    assert order == [3, 0, 1, 2]


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [[1.0, 2.0], [3.0]]), (0.5, [[0.5, 1.0], [1.5]])])
@pytest.mark.parametrize("speculates", [True, False])
def test_a_verdict_keeps_or_redoes(
    make: Callable[..., Bench], factor: float, expected: list[list[float]], speculates: bool
) -> None:
    bench, step = make(), Step(1, [0.1], needs_verdict=True, speculates=speculates)
    bench.submit(step, 2, 1.0, 2.0)
    bench.updates.wait_arrived()
    assert bench.done(2) == [], "nothing is for good before the verdict"
    assert bench.given_back == [], "the gradients may still be needed"
    bench.decide(step, factor)
    bench.submit(step, 0, 3.0)  # later than the verdict
    bench.updates.wait_idle()
    assert [bench.done(2), bench.done(0)] == expected
    assert bench.updates.num_rolled_back == (speculates and factor != 1.0)
    assert bench.updates.last_factor == factor
    assert len(bench.given_back) == 2


@pytest.mark.parametrize("may_skip", [True, False])
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_verdict_that_is_not_finite_changes_nothing(
    make: Callable[..., Bench], factor: float, may_skip: bool
) -> None:
    bench, step = make(), speculative(3, may_skip=may_skip)
    bench.submit(step, 1, 1.0)
    bench.decide(step, factor)
    bench.updates.wait_idle()
    assert bench.done(1) == []
    assert bench.updates.non_finite_step == (None if may_skip else 3)
    after = Step(4, [0.1])
    bench.submit(after, 1, 5.0)
    bench.updates.wait_idle()
    assert bench.done(1) == ([5.0] if may_skip else []), "nothing is updated after a step that was not taken"
    bench.updates.release()
    bench.submit(Step(5, [0.1]), 1, 6.0)
    bench.updates.wait_idle()
    assert bench.done(1)[-1] == 6.0


def test_an_update_that_is_late_belongs_to_its_own_step(make: Callable[..., Bench]) -> None:
    """A layer that the next step skips may be updated after that step was found not finite."""
    bench, good, bad = make(), Step(1, [0.1]), speculative(2)
    bench.recorders[bench.units[0]].gate = gate = threading.Event()
    bench.submit(good, 0, 1.0)
    bench.submit(good, 2, 7.0)
    bench.decide(bad, float("nan"))
    gate.set()
    bench.updates.wait_idle()
    assert bench.updates.non_finite_step == 2
    assert bench.done(2) == [7.0]


def test_a_loss_that_is_not_finite_holds_its_step_and_later_ones(make: Callable[..., Bench]) -> None:
    bench = make()
    for number, loss in ((1, 1.0), (2, float("nan")), (3, 1.0)):
        step = Step(number, [0.1], losses=[(torch.tensor(loss), DONE)])
        bench.submit(step, 0, float(number))
        bench.updates.wait_idle()
    assert bench.done(0) == [1.0]


def test_gradients_of_several_passes_are_added_and_their_places_free_at_once(
    make: Callable[..., Bench],
) -> None:
    bench, step = make(adds_up=True), Step(1, [0.1], needs_verdict=True)
    bench.submit(step, 0, 1.0, is_last=False)
    bench.submit(step, 1, 10.0, is_last=False)
    bench.submit(step, 0, 2.0)
    bench.submit(step, 2, 5.0)  # in the last pass alone
    bench.updates.wait_arrived()
    assert len(bench.given_back) == 4, "else the ring would run out before the verdict"
    sums = [{k: float(v) for k, v in bench.updates.accumulated(unit).items()} for unit in bench.units]
    assert sums == [{0: 3.0}, {0: 10.0}, {0: 5.0}]
    bench.updates.submit(step, Piece(Delivery(bench.units[1], None, [], is_whole=True), DONE, [], True), True)
    bench.decide(step, 0.5)
    bench.updates.wait_idle()
    assert [bench.done(index) for index in range(3)] == [[1.5], [5.0], [2.5]]
    assert not bench.updates.accumulated(bench.units[0])


@pytest.mark.parametrize("adds_up", [True, False])
def test_an_abandoned_step_is_undone_while_it_can_be(make: Callable[..., Bench], adds_up: bool) -> None:
    bench, step = make(adds_up=adds_up), speculative(4) if not adds_up else Step(4, [0.1], needs_verdict=True)
    bench.submit(step, 2, 1.0)
    bench.updates.wait_arrived()
    bench.updates.abandon(step, is_rest_begun=False)
    bench.submit(step, 1, 2.0)
    bench.updates.wait_idle()
    assert bench.done(2) == bench.done(1) == []
    assert len(bench.given_back) == 2
    assert bench.updates.broken_step is None
    again = Step(4, [0.1])
    bench.submit(again, 2, 8.0)
    bench.updates.wait_idle()
    assert bench.done(2) == [8.0], "nothing of the abandoned step is left in the sums"


def test_an_abandoned_step_that_changed_weights_is_called_broken(make: Callable[..., Bench]) -> None:
    bench, step = make(), Step(4, [0.1])
    bench.submit(step, 2, 1.0)
    bench.updates.wait_idle()
    bench.updates.abandon(step, is_rest_begun=False)
    bench.updates.wait_idle()
    assert bench.updates.broken_step == 4
    bench.updates.release()
    assert bench.updates.broken_step is None


def test_a_delivery_that_was_broken_off_gives_its_place_back(make: Callable[..., Bench]) -> None:
    bench, step = make(), Step(1, [0.1])
    for is_slow in (True, False):
        unit, place = bench.units[0], torch.ones(2)
        delivery = Delivery(unit, place, [place[0], place[1]])
        bench.recorders[unit].gate = gate = threading.Event()
        bench.updates.submit(step, Piece(delivery, DONE, [0], False), True)
        if not is_slow:
            gate.set()
            bench.updates.wait_idle()
        bench.updates.close_delivery(delivery)
        gate.set()
        bench.updates.wait_idle()
        assert bench.given_back.pop() is place
        assert not bench.given_back


def test_a_failure_reaches_everyone_who_waits(make: Callable[..., Bench]) -> None:
    bench = make()
    error = ValueError("the optimizer is broken")
    bench.recorders[bench.units[1]].error = error
    bench.submit(Step(1, [0.1]), 1, 1.0)
    bench.submit(Step(1, [0.1]), 0, 1.0)
    for wait in (bench.updates.wait_idle, bench.updates.wait_arrived, bench.units[0].wait_updated):
        with pytest.raises(ValueError, match=r"the optimizer is broken"):
            wait()
    assert bench.failures == [error]


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 0.5, float("nan")]), st.booleans(), st.integers(0, 3)), max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_verdicts(steps: list[tuple[float, bool, int]]) -> None:
    bench = Bench(2)
    try:
        expected: list[float] = []
        for number, (factor, speculates, num_late) in enumerate(steps, 1):
            step = Step(number, [0.1], needs_verdict=True, speculates=speculates, may_skip=True)
            values = [float(number * 10 + i) for i in range(3)]
            late = values[3 - num_late :] if num_late else []
            unit, place = bench.units[0], torch.tensor(values)
            delivery = Delivery(unit, place, list(place.unbind()))
            for position in range(3 - len(late)):
                bench.updates.submit(step, Piece(delivery, DONE, [position], position == 2), True)
            bench.decide(step, factor)
            for position in range(3 - len(late), 3):
                bench.updates.submit(step, Piece(delivery, DONE, [position], position == 2), True)
            bench.units[0].wait_updated()
            expected += [value * factor for value in values] if factor == factor else []
        bench.updates.wait_idle()
        assert sorted(bench.done(0)) == sorted(expected)
        assert len(bench.given_back) == len(steps)
    finally:
        bench.updates.close()


# -- the rules ---------------------------------------------------------------------------------------------------


def make_unit(half: torch.dtype | None) -> Unit:
    net = nets.Stack(1)
    (unit,) = make_units(find_layers(net, ["blocks.*"]), net, CPU, half, threading.Condition())
    unit.shadow = torch.zeros(unit.num_bytes, dtype=torch.uint8)
    if half is None:
        for entry in unit.entries:
            entry.master.data = entry.view(unit.shadow).copy_(entry.master.data)
    unit.write_shadow()
    return unit


def snapshot(unit: Unit, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {"shadow": unit.shadow.clone()}
    for entry in unit.entries:
        found[entry.name] = entry.master.detach().clone()
        for key, value in optimizer.state.get(entry.master, {}).items():
            found[f"{entry.name}/{key}"] = torch.as_tensor(0.0 if value is None else value).clone()
    return found


RULES: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "native": lambda p: torch.optim.AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("num_steps_before", [0, 2])
@pytest.mark.parametrize("rule", RULES)
def test_an_undone_update_leaves_no_trace(rule: str, num_steps_before: int) -> None:
    unit = make_unit(torch.bfloat16 if rule == "native" else None)
    optimizer = RULES[rule]([entry.master for entry in unit.entries])
    store = HostStore(Options(), CPU, print)
    update: Any
    if rule == "native":
        native = load_native(print)
        if native is None:
            pytest.skip("no compiler")
        update = NativeUpdate(unit, optimizer, native, store, undoable=True)
    else:
        update = TorchUpdate(unit, optimizer, store)
    generator = torch.Generator().manual_seed(1)

    def grads() -> dict[int, Tensor]:
        views = [entry.view(torch.zeros(unit.num_bytes, dtype=torch.uint8)) for entry in unit.entries]
        return {i: view.copy_(torch.randn(view.shape, generator=generator)) for i, view in enumerate(views)}

    for _ in range(num_steps_before):
        update.apply(grads(), [0.1], 1.0, undoable=True)
        update.keep()
    before, new = snapshot(unit, optimizer), grads()
    half_of = {i: grad for i, grad in new.items() if i % 2}
    update.apply(half_of, [0.3], 1.0, undoable=True)
    update.apply({i: grad for i, grad in new.items() if i % 2 == 0}, [0.3], 1.0, undoable=True)
    changed = snapshot(unit, optimizer)
    assert not changed["shadow"].equal(before["shadow"])
    update.undo()
    after = snapshot(unit, optimizer)
    # A state that the update made may stay as an empty one, which is what the next update would make.
    assert all(after[key].equal(before[key]) for key in before)
    assert all(not after[key].any() for key in after.keys() - before.keys())
    update.apply(new, [0.1], 0.5, undoable=False)
    redone = snapshot(unit, optimizer)
    assert all(value.isfinite().all() for value in redone.values())
    assert not redone["shadow"].equal(before["shadow"])
    store.close()


def test_a_part_of_an_optimizer_shares_the_state_of_the_whole() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    whole = torch.optim.Adam([{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:3]}, {"params": parameters[3:]}], lr=0.1)  # fmt: skip
    part, groups = part_of(whole, {parameters[1], parameters[3]})
    assert type(part) is torch.optim.Adam
    assert groups == [0, 2]
    assert [len(group["params"]) for group in part.param_groups] == [1, 1]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    part.step()
    assert set(whole.state) == {parameters[1], parameters[3]}
    assert parameters[0].equal(torch.ones(2))
    assert parameters[1].tolist() == pytest.approx([0.5, 0.5])
    assert whole.param_groups[0]["params"] == parameters[:2]
