"""A process of a run that dies or fails is named by all others within seconds: a collective would wait for it for minutes.

A connection that closes without a word is a death, since the kernel closes it whatever the process was doing. No
thread has to answer anybody, so a process that compiles, holds the interpreter or is stopped is not taken for dead.
"""

from __future__ import annotations

import atexit
import errno
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.job.blame import blame
from portwright.runtime.rank_links import Card, Link, go_through, how_it_ended, open_door, own_card, welcome

_SAVING_SECONDS = 120.0  # more, while a checkpoint is being written
_LONGEST_MESSAGE = 4000  # that others tell of a failure
_NEWS_SECONDS = 5.0  # to hear whose fault a broken connection is
_BROKEN = (  # what collectives say of a process that is gone
    "onnection closed by peer", "onnection reset by peer", "gloo/transport", "Broken pipe", "ProcessGroup", "NCCL", "nccl",
)  # fmt: skip
_CURE = "Its own output says why. The same command in every process goes on from the last checkpoint."


class OtherProcessFailed(UserError):
    """Another process of this run has failed or died."""


@dataclass(frozen=True)
class _Loss:
    """Which process is lost, in words that all processes use."""

    rank: int
    message: str
    is_death: bool
    status: int

    def as_error(self, step: int | None) -> OtherProcessFailed:
        if not self.is_death:
            error = OtherProcessFailed(self.message)
        else:
            error = OtherProcessFailed(self.message + ("" if step is None else f" at step {step}"), _CURE)
        if self.status in set(ExitStatus) - {ExitStatus.OK}:
            error.status = ExitStatus(self.status)
        return error


class RankWatch:
    """Hears in a thread when another process is lost, and ends this one if it does not end by itself in time.

    The first process has a link to every other one and passes on what it hears. `step` is told in messages; whoever
    trains sets it.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        rank: int,
        grace_seconds: float,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._cards, self._rank, self._grace_seconds, self._end = cards, rank, grace_seconds, end
        self.step: int | None = None
        self._links: dict[int, Link] = {}
        self._loss: _Loss | None = None
        self._is_lost, self._is_closed = threading.Event(), threading.Event()
        self._told_status: int | None = None
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._wake_reading, self._wake_writing = socket.socketpair()
        self._selector.register(self._wake_reading, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="portwright-ranks", daemon=True)
        _WATCHES.add(self)
        atexit.register(self._close_at_exit)

    @property
    def lost(self) -> OtherProcessFailed | None:
        """The error that tells which other process is lost; None while all are well."""
        return None if self._loss is None else self._loss.as_error(self.step)

    @property
    def exit_status(self) -> int | None:
        """What this process will end with because it or another one has failed; None while all are well."""
        if self._told_status is not None:
            return self._told_status
        return None if self._loss is None else int(self._loss.as_error(None).status)

    def add(self, link: Link) -> None:
        assert link.rank is not None
        self._links[link.rank] = link
        self._selector.register(link.connection, selectors.EVENT_READ, link)

    def let_in(self, listening: socket.socket, token: str) -> None:
        """Takes the other processes' links as they come, until all have."""
        self._listening, self._token = listening, token
        self._selector.register(listening, selectors.EVENT_READ)

    def start(self) -> None:
        self._thread.start()

    # -- in the main thread ----------------------------------------------------------------------------------------

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Tells the others of an exception that leaves the block; one that another process is to blame for names that process."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, OtherProcessFailed) or self._told_status is not None:
                raise
            if _tells_of_another(error):
                self._is_lost.wait(_NEWS_SECONDS)
                if (lost := self.lost) is not None:
                    raise lost from error
            self.tell_failure(error)
            raise

    def tell_failure(self, error: BaseException) -> None:
        """Lets the others say that this process failed, and with what; only the first time, and not of what it heard from them."""
        if isinstance(error, OtherProcessFailed):
            return
        with self._lock:
            if self._told_status is not None or self._is_closed.is_set():
                return
            message, status = _explain(error)
            self._told_status = status
            told = f"process {self._rank} failed: {message[:_LONGEST_MESSAGE]}"
            loss = _Loss(self._rank, told, False, status)
            self._tell({"kind": "lost", **asdict(loss)})

    def close(self) -> None:
        """Says that this process is done, which is no death; more calls do nothing."""
        with self._lock:
            if self._is_closed.is_set():
                return
            if self._told_status is None:
                self._tell({"kind": "end"})
            self._is_closed.set()
        atexit.unregister(self._close_at_exit)
        self._wake_writing.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for link in self._links.values():
            link.close()
        self._let_go()

    def _close_at_exit(self) -> None:
        # A script that ends without closing has ended all the same; an exception that nothing caught is kept in sys.
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.tell_failure(error)
        self.close()

    def forget(self) -> None:
        """In a forked child: its copies of the connections would keep them open when this process dies."""
        # A new one: the lock of the old may be held by a thread that was not forked.
        self._is_closed = threading.Event()
        self._is_closed.set()
        for link in self._links.values():
            link.connection.close()
        self._let_go()

    def _let_go(self) -> None:
        # Nothing is unregistered: a forked child shares its parent's selector.
        for owned in (
            self._selector,
            self._wake_reading,
            self._wake_writing,
            getattr(self, "_listening", None),
        ):
            if owned is not None:
                owned.close()

    def _tell(self, message: Mapping[str, Any], but: int | None = None) -> None:
        for rank, link in list(self._links.items()):
            if rank != but:
                link.send(message)

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        deadline: float | None = None
        while not self._is_closed.is_set():
            if deadline is None and self._is_lost.is_set():
                deadline = time.monotonic() + self._grace_seconds
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._end_process()
                return
            for key, _ in self._selector.select(left):
                if isinstance(key.data, Link):
                    self._read(key.data)
                elif key.fileobj is not self._wake_reading:
                    self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # would be told again and again
                self._shut_door()
            return
        connection.setblocking(True)
        self._selector.register(connection, selectors.EVENT_READ, Link(connection))

    def _shut_door(self) -> None:
        self._selector.unregister(self._listening)
        self._listening.close()

    def _read(self, link: Link) -> None:
        try:
            messages = link.receive()
        except OSError as error:
            self._drop(link, error)
            return
        if messages is None:
            self._drop(link, None)
            return
        for message in messages:
            if link.rank is None:
                if not welcome(link, message, self._token):
                    self._drop(link, None)
                    return
                assert link.rank is not None
                with self._lock:
                    self._links[link.rank] = link
                if len(self._links) == len(self._cards) - 1:
                    self._shut_door()
            elif message["kind"] == "end":
                link.has_ended = True
            elif message.pop("kind") == "lost":
                loss = _Loss(**message)
                link.has_ended = link.has_ended or loss.rank == link.rank
                self._lose(loss, link.rank)

    def _drop(self, link: Link, error: OSError | None) -> None:
        self._selector.unregister(link.connection)
        with self._lock:
            if link.rank is not None:
                self._links.pop(link.rank, None)
        link.connection.close()
        if link.rank is None or link.has_ended or self._is_closed.is_set():
            return
        card = self._cards[link.rank]
        if error is None:
            died = f"{card} has died{how_it_ended(card, self._cards[self._rank].place)}"
        else:
            died = f"{card} cannot be reached any more ({error.strerror or error})"
        self._lose(_Loss(card.rank, died, True, int(ExitStatus.USAGE)), card.rank)

    def _lose(self, loss: _Loss, heard_from: int) -> None:
        """The first loss counts: those that follow are mostly its consequences."""
        if self._loss is not None:
            return
        self._loss = loss
        if self._rank == 0:
            with self._lock:
                self._tell({"kind": "lost", **asdict(loss)}, but=heard_from)
        self._is_lost.set()

    def _end_process(self) -> None:
        """For a main thread that is stuck in a collective, or in whatever else; a checkpoint that is being written is finished first."""
        deadline = time.monotonic() + _SAVING_SECONDS
        while _is_saving() and time.monotonic() < deadline and not self._is_closed.wait(0.1):
            pass
        if self._is_closed.is_set():
            return
        assert self._loss is not None
        error = self._loss.as_error(self.step)
        prefix = "\n" if os.isatty(2) else ""  # a bar may be drawn there
        prefix += f"process {self._rank}: " if self._rank else ""
        # Not through sys.stderr, whose lock the main thread may hold.
        os.write(2, f"{prefix}error: {' '.join(str(error).split())}\n".encode(errors="replace"))
        self._end(int(error.status))


def watch_ranks(
    rank: int,
    gather: Callable[[Any], list[Any]],
    master_address: str | None,
    note: Callable[[str], None],
    *,
    grace_seconds: float,
) -> RankWatch:
    """Links the processes of a run; every one calls it. `gather` gives the values of all, by rank, to every process."""
    cards: list[Card] = gather(own_card(rank))
    watch = RankWatch(cards, rank, grace_seconds)
    door, problem = None, ""
    if rank == 0:
        try:
            listening, door = open_door(cards, master_address)
        except OSError as error:
            problem = f"process 0 cannot listen: {error.strerror or error}"
        else:
            watch.let_in(listening, door.token)
            watch.start()
    door = gather(door)[0]
    if rank > 0 and door is not None:
        link = go_through(door, cards[rank])
        if isinstance(link, str):
            problem = f"process {rank} cannot reach process 0 at {link}"
        else:
            watch.add(link)
            watch.start()
    problems = [told for told in gather(problem) if told]
    if problems:
        note(
            f"{problems[0]}: the death of {len(problems)} of {len(cards)} processes may show only after minutes."
        )
    return watch


def failing_together(world: Any) -> AbstractContextManager[None]:
    """`RankWatch.failing_together` of a world that has a watch; a world of one process has none."""
    watch: RankWatch | None = getattr(world, "watch", None)
    return nullcontext() if watch is None else watch.failing_together()


def _tells_of_another(error: BaseException) -> bool:
    """Whether an exception, or what it came from, is a collective's that has lost a process."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if any(kind.__name__ == "DistError" for kind in type(cause).__mro__):
            return True
        if isinstance(cause, RuntimeError | OSError) and any(part in str(cause) for part in _BROKEN):
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def _explain(error: BaseException) -> tuple[str, int]:
    """One line, and the exit status with which the process will end."""
    if isinstance(error, PortwrightError):
        return str(error), int(error.status)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", int(ExitStatus.INTERRUPTED)
    if isinstance(error, Exception):
        return blame(error).message, int(ExitStatus.USAGE)
    return f"{type(error).__name__} {error}".strip(), int(ExitStatus.USAGE)


def _is_saving() -> bool:
    return any(thread.name.startswith("checkpoint_") for thread in threading.enumerate())


_WATCHES: weakref.WeakSet[RankWatch] = weakref.WeakSet()


def _forget_watches() -> None:
    for watch in list(_WATCHES):
        watch.forget()
    _WATCHES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_watches)
