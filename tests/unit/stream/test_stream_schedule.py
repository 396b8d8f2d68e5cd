"""Who is given what, without threads: time and events are the test's own."""

from __future__ import annotations

import random

import pytest

from portwright.stream import schedule
from portwright.stream.schedule import Order, Run, Schedule, Seat


class Table:
    """A schedule and what was sent to whom."""

    def __init__(self) -> None:
        self.schedule: Schedule[str] = Schedule(0.0)
        self.sent: list[tuple[str, bytes]] = []
        self.warned: list[tuple[str, str]] = []  # who was given what has ended another
        self.now = 0.0

    def seat(self, name: str) -> Seat[str]:
        def send(ticket: int, body: bytes, has_killed: bool) -> None:
            self.sent.append((name, body))
            if has_killed:
                self.warned.append((name, body.decode()))

        seat: Seat[str] = Seat(name, send)
        self.schedule.join(seat, self.now)
        self.schedule.feed(self.now)
        return seat

    def order(self, run: Run[str], *bodies: str, lane: int | None = None) -> None:
        for body in bodies:
            self.schedule.add(run, Order(body.encode(), lane))
        self.schedule.feed(self.now)

    def answer(self, seat: Seat[str]) -> str | None:
        """The seat answers the oldest that it has."""
        ticket, (task, _) = next(iter(seat.held.items()))
        accepted = self.schedule.answer(seat, ticket, task.order.body.decode(), self.now)
        self.schedule.feed(self.now)
        return accepted.result if accepted else None

    def take_sent(self) -> list[tuple[str, str]]:
        sent, self.sent = self.sent, []
        return [(name, body.decode()) for name, body in sent]


@pytest.fixture
def table() -> Table:
    return Table()


def test_everyone_gets_one_before_anyone_gets_two_and_no_one_three(table: Table) -> None:
    table.seat("a")
    table.seat("b")
    table.order(table.schedule.open_run(), *"01234567")
    assert [body for _, body in table.take_sent()] == ["0", "1", "2", "3"]
    assert all(len(seat.held) == schedule.IN_FLIGHT for seat in table.schedule.seats)


def test_the_smallest_order_goes_first_also_one_that_came_back(table: Table) -> None:
    run = table.schedule.open_run()
    table.order(run, *"012345")
    a = table.seat("a")
    b = table.seat("b")
    assert table.take_sent() == [("a", "0"), ("a", "1"), ("b", "2"), ("b", "3")]
    assert table.schedule.leave(a, 0) == 2
    table.answer(b)
    table.answer(b)
    table.answer(b)
    assert table.take_sent() == [("b", "0"), ("b", "1"), ("b", "4")]


@pytest.mark.parametrize("has_begun", [False, True])
def test_workers_that_are_lost_together_do_not_accuse_an_order(table: Table, has_begun: bool) -> None:
    run = table.schedule.open_run()
    a = table.seat("a")
    table.order(run, "0")
    b = table.seat("b")
    task = run.tasks[0]
    table.now = 1.0
    table.schedule.leave(a, table.now)
    table.schedule.feed(table.now)
    assert task.killed == ["a"]
    assert table.warned == [("b", "0")]
    table.now = 2.0
    if has_begun:
        b.begun = task.ticket
    table.schedule.leave(b, table.now)
    assert task.killed == (["a", "b"] if has_begun else ["a"])


def test_a_fast_worker_gets_more(table: Table) -> None:
    table.seat("slow")
    fast = table.seat("fast")
    run = table.schedule.open_run()
    table.order(run, *[str(n) for n in range(20)])
    for _ in range(16):
        table.answer(fast)
    assert sum(name == "slow" for name, _ in table.sent) == 2


def test_answers_of_a_closed_run_are_dropped_and_make_room(table: Table) -> None:
    a = table.seat("a")
    old = table.schedule.open_run()
    table.order(old, *"012")
    table.schedule.close_run(old)
    new = table.schedule.open_run()
    table.order(new, *"xy")
    assert table.take_sent() == [("a", "0"), ("a", "1")]
    assert table.answer(a) is None
    assert table.take_sent() == [("a", "x")]
    assert table.answer(a) is None
    assert table.answer(a) == "x"


def test_the_run_that_is_waited_for_goes_before_others(table: Table) -> None:
    training, evaluation = table.schedule.open_run(), table.schedule.open_run()
    table.order(training, *"01")
    table.order(evaluation, *"xy")
    table.schedule.prefer(training)
    a = table.seat("a")
    assert table.take_sent() == [("a", "0"), ("a", "1")]
    table.answer(a)
    assert table.take_sent() == [("a", "x")]


def test_a_silent_worker_is_gone_around_and_its_late_answer_dropped(table: Table) -> None:
    a, b = table.seat("a"), table.seat("b")
    run = table.schedule.open_run()
    table.order(run, *"01")
    table.now = 0.1
    table.answer(b)
    table.take_sent()
    table.now = schedule.BYPASS_SECONDS
    assert table.schedule.find_silent(table.now) == []
    table.schedule.durations.extend([1.0] * 64)
    table.now = 9.9
    assert table.schedule.find_silent(table.now) == []
    table.now = 10.1
    assert [seat.name for seat, _ in table.schedule.find_silent(table.now)] == ["a"]
    table.schedule.feed(table.now)
    assert table.take_sent() == [("b", "0")]
    assert table.answer(b) == "0"
    table.order(run, "2")
    assert table.take_sent() == [("b", "2")], "a silent one gets nothing"
    assert table.answer(a) is None
    assert not a.is_silent


def test_a_silent_worker_that_answers_after_all_is_believed_and_keeps_the_rest(table: Table) -> None:
    a = table.seat("a")
    table.order(table.schedule.open_run(), *"012")
    table.take_sent()
    table.now = 1000.0
    assert table.schedule.find_silent(table.now)
    assert table.schedule.alone_since == 1000.0
    assert table.answer(a) == "0"
    assert table.schedule.alone_since is None
    assert table.take_sent() == [("a", "2")], "it still has 1, and is not given it twice"
    assert table.answer(a) == "1"


def test_a_worker_that_sends_pieces_is_not_silent(table: Table) -> None:
    a = table.seat("a")
    table.order(table.schedule.open_run(), "0")
    a.heard = table.now = 1000.0
    assert table.schedule.find_silent(1001.0) == []


def test_one_without_work_does_once_what_a_slow_one_has_for_long(table: Table) -> None:
    table.schedule.durations.extend([1.0] * 8)
    slow, fast, other = table.seat("slow"), table.seat("fast"), table.seat("other")
    table.order(table.schedule.open_run(), *"012")
    table.now = 1.0
    table.answer(fast)
    table.answer(other)
    table.take_sent()
    table.now = 2.5
    table.schedule.feed(table.now)
    assert table.take_sent() == [("fast", "0")]
    assert table.answer(fast) == "0"
    assert table.answer(slow) is None


def test_lanes_stay_with_their_worker_in_turn_and_move_in_order(table: Table) -> None:
    a, b = table.seat("a"), table.seat("b")
    run = table.schedule.open_run()
    for number in range(4):
        table.order(run, f"x{number}", lane=0)
        table.order(run, f"y{number}", lane=1)
    assert table.take_sent() == [("a", "x0"), ("b", "y0"), ("a", "x1"), ("b", "y1")]
    table.answer(b)
    assert table.take_sent() == [("b", "y2")]
    table.answer(a)
    table.schedule.leave(a, 0)
    table.take_sent()
    for _ in range(6):
        table.answer(b)
    assert table.take_sent() == [("b", "x1"), ("b", "x2"), ("b", "x3"), ("b", "y3")]
    assert not b.held


def test_lanes_spread_over_workers_and_a_late_one_gets_an_idle_lane(table: Table) -> None:
    run = table.schedule.open_run()
    a = table.seat("a")
    for lane in range(4):
        table.order(run, f"{lane}-0", f"{lane}-1", lane=lane)
    assert table.take_sent() == [("a", "0-0"), ("a", "0-1")]
    for _ in range(4):
        table.answer(a)  # it owns three lanes now, and does two orders of the third
    table.take_sent()
    b = table.seat("b")
    assert table.take_sent() == [("b", "3-0"), ("b", "3-1")]
    table.answer(b)
    table.answer(b)
    table.order(run, "0-2", "1-2", "2-2", "3-2", lane=None)
    run_lanes = {lane: owner.name for lane, owner in run.owners.items()}
    assert run_lanes == {0: "a", 1: "a", 2: "a", 3: "b"}


def test_a_lane_moves_to_a_worker_without_work_only_while_nothing_of_it_is_being_done(table: Table) -> None:
    run = table.schedule.open_run()
    a = table.seat("a")
    for lane in range(3):
        table.order(run, f"{lane}", lane=lane)
    table.answer(a)
    table.answer(a)
    table.answer(a)
    table.take_sent()
    table.order(run, "0", "0", lane=0)
    b = table.seat("b")
    assert table.take_sent() == [("a", "0"), ("a", "0")]
    table.order(run, "1", lane=1)
    assert table.take_sent() == [("b", "1")]
    assert run.owners[1] is b
    assert run.owners[0] is a


@pytest.mark.parametrize("seed", range(100))
def test_whatever_happens_each_order_is_answered_exactly_once_and_all_end(seed: int) -> None:
    """Workers come, die, fall silent, come back, are slow; the delivery is as if there were one that never fails."""
    rng = random.Random(seed)
    table = Table()
    num_lanes = rng.choice([0, 0, 1, 3])
    run = table.schedule.open_run()
    window, total = rng.randint(1, 12), 60
    drawn = 0
    delivered: list[str] = []
    frozen: set[Seat[str]] = set()
    begun: dict[tuple[str, int], list[int]] = {}

    def begin(name: str, body: bytes) -> None:
        if num_lanes:
            begun.setdefault((name, int(body) % num_lanes), []).append(int(body))

    for turn in range(4000):
        if len(delivered) == total:
            break
        while drawn < total and len(run.tasks) < window:
            table.order(run, str(drawn), lane=drawn % num_lanes if num_lanes else None)
            drawn += 1
        table.now += rng.random()
        seats = table.schedule.seats
        event = rng.random()
        if event < 0.1 or not seats:
            table.seat(f"w{turn}")
        elif event < 0.15:
            gone = rng.choice(seats)
            table.schedule.leave(gone, table.now)
            frozen.discard(gone)
        elif event < 0.2:
            frozen.add(rng.choice(seats))
        elif event < 0.25 and frozen:
            frozen.discard(rng.choice(sorted(frozen, key=lambda seat: seat.name)))
        else:
            ready = [seat for seat in seats if seat.held and seat not in frozen]
            if ready:
                table.answer(rng.choice(ready))
        if rng.random() < 0.05:
            table.now += 100
        table.schedule.find_silent(table.now)
        table.schedule.feed(table.now)
        for name, body in table.sent:
            begin(name, body)
        table.sent.clear()
        assert all(len(seat.held) <= schedule.IN_FLIGHT for seat in seats)
        while run.tasks and run.tasks[0].result is not None:
            delivered.append(run.tasks.popleft().result or "")
    assert delivered == [str(number) for number in range(total)]
    going_back = {who: orders for who, orders in begun.items() if orders != sorted(set(orders))}
    assert not going_back, "a lane goes forward at each worker"
