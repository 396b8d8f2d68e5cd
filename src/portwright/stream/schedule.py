"""Who does which order: a state machine without threads, sockets or a clock of its own. Its owner holds a lock around every call."""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")

IN_FLIGHT = 2  # orders a worker has at once: it does one while the next one waits there
BYPASS_SECONDS = 5.0  # after so long a silence, and TIMES the usual time, a worker's orders go to others
BYPASS_TIMES = 10.0
BACKUP_SECONDS, BACKUP_TIMES = 0.05, 2.0  # an order that takes so long goes to an idle worker as well
FIRST_SECONDS = 60.0  # the bypass limit before any answer: the first order may open the data set


@dataclass(frozen=True)
class Order:
    """What a worker is to do. Orders of one lane go to one worker, in turn, and all to another one when it is gone."""

    body: bytes
    lane: int | None = None


@dataclass(eq=False)
class Task(Generic[R]):
    """An order that is not delivered yet."""

    ticket: int
    order: Order
    run: Run[R]
    holder: object | None = None  # the worker that got it last and is expected to answer
    has_backup: bool = False
    killed: list[str] = field(default_factory=list)  # workers that ended at it
    result: R | None = None

    @property
    def is_wanted(self) -> bool:
        return self.result is None and self.run.is_open


@dataclass(eq=False)
class Run(Generic[R]):
    """The orders of one input, in the order of delivery."""

    tasks: deque[Task[R]] = field(default_factory=deque)
    waiting: dict[int | None, list[tuple[int, Task[R]]]] = field(default_factory=dict)  # heaps by lane
    owners: dict[int, Seat[R]] = field(default_factory=dict)  # of lanes
    is_open: bool = True

    def put_back(self, task: Task[R]) -> None:
        task.holder, task.has_backup = None, False
        heapq.heappush(self.waiting.setdefault(task.order.lane, []), (task.ticket, task))

    def first_waiting(self, lane: int | None) -> Task[R] | None:
        heap = self.waiting.get(lane)
        while heap:
            task = heap[0][1]
            if task.result is None and task.holder is None:
                return task
            heapq.heappop(heap)  # answered, or given to a worker, since it was put there
        return None

    def num_lanes(self, seat: Seat[R]) -> int:
        return sum(owner is seat for owner in self.owners.values())


@dataclass(eq=False)
class Seat(Generic[R]):
    """A connected worker."""

    name: str
    send: Callable[[int, bytes, bool], None]  # ticket, body, whether workers ended at it; must not block
    # by ticket: since when; oldest first
    held: dict[int, tuple[Task[R], float]] = field(default_factory=dict)
    heard: float = 0.0  # when it last said something
    answered: float = 0.0
    begun: int = 0  # ticket of the order that it has begun, among those at which workers ended
    is_silent: bool = False  # for so long that others got its orders

    @property
    def current(self) -> Task[R] | None:
        """The order that it works at; its other orders come later."""
        return next((task for task, _ in self.held.values()), None)


class Schedule(Generic[R]):
    """Gives the earliest waiting order to a free worker, and knows which orders are overdue."""

    def __init__(self, now: float) -> None:
        self.seats: list[Seat[R]] = []
        self.runs: list[Run[R]] = []  # the one that was asked last is first
        self.alone_since: float | None = now  # when the last responsive worker went; None while there is one
        self.durations: deque[float] = deque(maxlen=64)
        self._tickets: Iterator[int] = itertools.count(1)

    # Runs

    def open_run(self) -> Run[R]:
        run: Run[R] = Run()
        self.runs.insert(0, run)
        return run

    def close_run(self, run: Run[R]) -> None:
        """Forgets the run; answers that still come for it are dropped."""
        run.is_open = False
        run.tasks.clear()
        run.waiting.clear()
        run.owners.clear()
        if run in self.runs:
            self.runs.remove(run)

    def prefer(self, run: Run[R]) -> None:
        """Puts the run before others: someone waits for it now."""
        if self.runs[0] is not run:
            self.runs.remove(run)
            self.runs.insert(0, run)

    def add(self, run: Run[R], order: Order) -> None:
        task = Task(next(self._tickets), order, run)
        run.tasks.append(task)
        run.put_back(task)

    # Workers

    def join(self, seat: Seat[R], now: float) -> None:
        seat.heard = seat.answered = now
        self.seats.append(seat)
        self._note_whether_alone(now)

    def leave(self, seat: Seat[R], now: float) -> int:
        """Removes a worker; returns how many of its orders go to others."""
        if seat not in self.seats:
            return 0
        self.seats.remove(seat)
        self._note_whether_alone(now)
        task = seat.current
        # An order at which others ended is blamed only if this worker had begun it.
        if task is not None and (not task.killed or seat.begun == task.ticket):
            task.killed.append(seat.name)
        return self._release(seat)

    def answer(self, seat: Seat[R], ticket: int, result: R, now: float) -> Task[R] | None:
        """Takes a result; gives its task, or None if it is not wanted any more."""
        entry = seat.held.pop(ticket, None)
        if entry is None:
            return None
        task, since = entry
        self.durations.append(now - max(since, seat.answered))
        seat.heard = seat.answered = now
        if seat.is_silent:
            self._reinstate(seat, now)
        if not task.is_wanted:
            return None
        task.result = result
        return task

    def is_wanted(self, seat: Seat[R], ticket: int) -> bool:
        return ticket in seat.held and seat.held[ticket][0].is_wanted

    def feed(self, now: float) -> None:
        """Gives orders to all workers that have room; each gets a first one before any gets a second."""
        for level in range(IN_FLIGHT):
            for seat in self.seats:
                if len(seat.held) == level and not seat.is_silent and (task := self._next_for(seat)):
                    self._give(task, seat, now)
        for seat in self.seats:
            if not seat.held and not seat.is_silent and (task := self._straggler(now)):
                self._give(task, seat, now)
                task.has_backup = True

    def _give(self, task: Task[R], seat: Seat[R], now: float) -> None:
        task.holder = seat
        if task.ticket not in seat.held:  # else it was silent, and still has this order
            seat.held[task.ticket] = (task, now)
            seat.send(task.ticket, task.order.body, bool(task.killed))

    def _straggler(self, now: float) -> Task[R] | None:
        """The first order that a slow worker has had for long: once the window is full, all other workers wait for it."""
        late = [
            task
            for seat in self.seats
            for task, since in seat.held.values()
            if task.is_wanted and task.holder is seat and not task.has_backup and not task.killed and task.order.lane is None
            and now - max(since, seat.answered) > max(BACKUP_SECONDS, BACKUP_TIMES * self._usual_seconds())
        ]  # fmt: skip
        return min(late, key=lambda task: task.ticket, default=None)

    def _usual_seconds(self) -> float:
        return statistics.median(self.durations) if self.durations else FIRST_SECONDS / BYPASS_TIMES

    def find_silent(self, now: float) -> list[tuple[Seat[R], float]]:
        """Frees the orders of workers that are silent for too long; returns those workers, each with its silence in seconds."""
        limit = max(BYPASS_SECONDS, BYPASS_TIMES * self._usual_seconds())
        found = []
        for seat in self.seats:
            if seat.is_silent or not seat.held:
                continue
            oldest = next(iter(seat.held.values()))[1]
            silence = now - max(oldest, seat.heard)
            if silence > limit:
                seat.is_silent = True
                self._release(seat)
                found.append((seat, silence))
        if found:
            self._note_whether_alone(now)
        return found

    def _release(self, seat: Seat[R]) -> int:
        """Puts this worker's orders and lanes back for other workers; returns how many orders."""
        for run in list(self.runs):
            run.owners = {lane: owner for lane, owner in run.owners.items() if owner is not seat}
        released = [task for task, _ in seat.held.values() if task.is_wanted and task.holder is seat]
        for task in released:
            task.run.put_back(task)
        return len(released)

    def _reinstate(self, seat: Seat[R], now: float) -> None:
        """A silent worker has answered: orders that it still has, and that no other worker got, are its own again."""
        seat.is_silent = False
        for task, _ in seat.held.values():
            lane = task.order.lane
            is_free = task.is_wanted and task.holder is None
            if is_free and (lane is None or task.run.owners.setdefault(lane, seat) is seat):
                task.holder = seat
        self._note_whether_alone(now)

    def _note_whether_alone(self, now: float) -> None:
        if any(not seat.is_silent for seat in self.seats):
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = now

    # Lanes

    def _next_for(self, seat: Seat[R]) -> Task[R] | None:
        for run in list(self.runs):  # collecting a dropped generator may close its run at any moment
            found = [run.first_waiting(lane) for lane in list(run.waiting) if self._may_take(run, lane, seat)]
            tasks = [task for task in found if task is not None]
            task = min(tasks, key=lambda each: each.ticket) if tasks else self._lane_of_another(run, seat)
            if task is not None:
                if task.order.lane is not None:
                    run.owners[task.order.lane] = seat
                return task
        return None

    def _may_take(self, run: Run[R], lane: int | None, seat: Seat[R]) -> bool:
        """A lane without an owner goes to one of the workers with the fewest lanes."""
        if lane is None:
            return True
        owner = run.owners.get(lane)
        if owner is not None:
            return owner is seat
        return run.num_lanes(seat) == min(run.num_lanes(each) for each in self.seats if not each.is_silent)

    def _lane_of_another(self, run: Run[R], seat: Seat[R]) -> Task[R] | None:
        """For an idle worker that came late: a lane of which no order is out, from a worker that has two lanes more."""
        num_own = run.num_lanes(seat)
        for lane, owner in list(run.owners.items()):
            busy = any(task.run is run and task.order.lane == lane for task, _ in owner.held.values())
            if not busy and run.num_lanes(owner) >= num_own + 2 and (task := run.first_waiting(lane)):
                return task
        return None
