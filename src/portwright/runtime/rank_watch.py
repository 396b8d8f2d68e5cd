"""A process of a run that dies or fails is named by all others within seconds: a collective would wait for it for minutes.

Every process keeps a connection to the first one, which passes on what it hears. A connection that closes without a
word is a death, since the kernel closes it whatever the process was doing. No thread has to answer anybody, so a
process that compiles, holds the interpreter or is stopped is not taken for dead.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.job.blame import blame

_CONNECT_SECONDS = 20.0  # for each address that the first process may have
_SILENT_SECONDS = 180  # without any sign from a host's kernel, before the host counts as gone
_SAVING_SECONDS = 120.0  # more, while a checkpoint is being written
_LONGEST_MESSAGE = 4000  # about a failure, in characters
_LONGEST_GREETING = 1000
_NEWS_SECONDS = 5.0  # to hear which process broke a connection
_BROKEN = (  # what collectives say of a process that is gone
    "onnection closed by peer", "onnection reset by peer", "gloo/transport", "Broken pipe", "ProcessGroup", "NCCL", "nccl",
)  # fmt: skip
_CURE = "Its own output says why. The same command in every process goes on from the last checkpoint."


class OtherProcessFailed(UserError):
    """Another process of this run has failed or died."""


@dataclass(frozen=True)
class Loss:
    """Which process is lost, in words that all processes use."""

    rank: int
    message: str
    is_death: bool = True
    status: int = int(ExitStatus.USAGE)

    def as_error(self, step: int | None) -> OtherProcessFailed:
        at = "" if step is None or not self.is_death else f" at step {step}"
        error = OtherProcessFailed(self.message + at, _CURE if self.is_death else "")
        if self.status in set(ExitStatus) - {ExitStatus.OK}:
            error.status = ExitStatus(self.status)
        return error


class RankWatch:
    """Hears when another process is lost, and ends this one if it does not end by itself in time.

    `names` are the processes' names in messages. `step` stands in messages too; the training sets it.
    """

    def __init__(
        self, names: Sequence[str], rank: int, grace_seconds: float, end: Callable[[int], None] = os._exit
    ) -> None:
        self._names, self._rank, self._grace_seconds, self._end = names, rank, grace_seconds, end
        self.step: int | None = None
        self._loss: Loss | None = None
        self._told_status: int | None = None
        self._sockets: list[socket.socket] = []  # all that are open
        self._links: dict[int, socket.socket] = {}  # those to other processes
        self._is_lost, self._is_closed = threading.Event(), threading.Event()
        self._lock = threading.RLock()
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

    # -- connections -----------------------------------------------------------------------------------------------

    def listen(self, token: str, *, is_local: bool) -> int:
        """Lets in processes that know the token; gives the port. `is_local`: all are on this machine."""
        most = len(self._names)
        if is_local:
            listening = socket.create_server(("127.0.0.1", 0), backlog=most)
        else:
            try:
                listening = socket.create_server(
                    ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=most
                )
            except (OSError, ValueError):  # no IPv6, or not both with one socket
                listening = socket.create_server(("", 0), backlog=most)
        self._sockets.append(listening)
        _in_thread(self._accept, listening, token)
        return int(listening.getsockname()[1])

    def connect(self, addresses: Sequence[str], port: int, token: str) -> str:
        """Connects to the first process; says why that fails, or nothing."""
        problems = []
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
            except OSError as error:
                problems.append(f"{address}:{port}: {error.strerror or error}")
                continue
            reader = connection.makefile("rb")
            with suppress(OSError):
                connection.sendall(f"{token} {self._rank}\n".encode())
                if reader.readline(_LONGEST_GREETING) == _ACCEPTED:
                    self._add(0, connection)
                    _in_thread(self._read, 0, reader)
                    return ""
            reader.close()
            connection.close()
            problems.append(f"{address}:{port}: somebody else answers")
        return "; ".join(problems)

    def _accept(self, listening: socket.socket, token: str) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # all have come, this watch is closed, or no more files may be open
                return
            _in_thread(self._greet, listening, connection, token)

    def _greet(self, listening: socket.socket, connection: socket.socket, token: str) -> None:
        connection.settimeout(_CONNECT_SECONDS)
        reader = connection.makefile("rb")
        try:
            said = reader.readline(_LONGEST_GREETING).split()
            if len(said) != 2 or not secrets.compare_digest(said[0], token.encode()):
                raise OSError("a stranger")
            rank = int(said[1])
            with self._lock:  # `close` either finds this connection, or none is made
                if self._is_closed.is_set():
                    raise OSError("too late")
                connection.sendall(_ACCEPTED)
                self._add(rank, connection)
        except OSError:
            reader.close()
            connection.close()
            return
        if len(self._links) == len(self._names) - 1:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
        self._read(rank, reader)

    def _add(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        _keep_alive(connection)
        with self._lock:
            self._sockets.append(connection)
            self._links[rank] = connection

    def _read(self, rank: int, reader: BinaryIO) -> None:
        """Reads what another process says, until the connection ends."""
        has_ended = False  # in an orderly way: it said so
        died = f"{self._names[rank]} has died"
        try:
            for line in reader:
                loss = Loss(**told) if (told := json.loads(line)) else None
                has_ended = has_ended or loss is None or loss.rank == rank
                if loss is not None:
                    self._lose(loss, rank)
        except (ConnectionError, ValueError):
            pass  # it died while it wrote
        except OSError as error:
            died = f"{self._names[rank]} cannot be reached any more ({error.strerror or error})"
        with self._lock:
            self._links.pop(rank, None)
        if not has_ended and not self._is_closed.is_set():
            self._lose(Loss(rank, died), rank)

    def _tell(self, message: Mapping[str, Any], but: int | None = None) -> None:
        for rank, connection in self._links.items():
            if rank != but:
                with suppress(OSError):  # reading tells that the other side is gone
                    connection.sendall(json.dumps(message).encode() + b"\n")

    def _lose(self, loss: Loss, heard_from: int) -> None:
        """The first loss counts: those that follow are mostly its consequences."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
            if self._rank == 0:
                self._tell(asdict(loss), but=heard_from)
        self._is_lost.set()
        _in_thread(self._end_process, loss)

    def _end_process(self, loss: Loss) -> None:
        """Ends a process whose main thread is stuck, as in a collective; a checkpoint that is being written is finished first."""
        if self._is_closed.wait(self._grace_seconds):
            return
        deadline = time.monotonic() + _SAVING_SECONDS
        while any(thread.name.startswith("checkpoint_") for thread in threading.enumerate()):
            if self._is_closed.wait(0.1) or time.monotonic() > deadline:
                break
        if self._is_closed.is_set():
            return
        error = loss.as_error(self.step)
        prefix = "\n" if os.isatty(2) else ""  # a bar may be drawn there
        prefix += f"process {self._rank}: " if self._rank else ""
        # Not through sys.stderr, whose lock the main thread may hold.
        os.write(2, f"{prefix}error: {' '.join(str(error).split())}\n".encode(errors="replace"))
        self._end(int(error.status))

    # -- in the main thread ----------------------------------------------------------------------------------------

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Tells the others of an exception that leaves the block; where another process is the cause, the error names it."""
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
        """Tells the others once that this process failed, and with what; nothing where the failure is one that they told of."""
        if isinstance(error, OtherProcessFailed):
            return
        with self._lock:
            if self._told_status is not None or self._is_closed.is_set():
                return
            message, self._told_status = _explain(error)
            told = f"process {self._rank} failed: {message[:_LONGEST_MESSAGE]}"
            self._tell(asdict(Loss(self._rank, told, is_death=False, status=self._told_status)))

    def close(self) -> None:
        """Says that this process is done, so that the others do not take its end for a death; more calls do nothing."""
        with self._lock:
            if self._is_closed.is_set():
                return
            if self._told_status is None:
                self._tell({})
            self._is_closed.set()
        atexit.unregister(self._close_at_exit)
        for opened in self._sockets:
            with suppress(OSError):  # the other side may be gone
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _close_at_exit(self) -> None:
        # A script that ends without closing has ended all the same; an exception that nothing caught is kept in sys.
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.tell_failure(error)
        self.close()

    def forget(self) -> None:
        """Called in a forked child: closes its copies of the connections, which would keep them open when this process dies."""
        # New ones: the locks of the old may be held by a thread that was not forked.
        self._lock, self._is_closed = threading.RLock(), threading.Event()
        self._is_closed.set()
        for opened in self._sockets:
            with suppress(OSError):  # closed before the fork
                os.close(opened.detach())


def watch_ranks(
    rank: int,
    gather: Callable[[Any], list[Any]],
    master_address: str | None,
    note: Callable[[str], None],
    *,
    grace_seconds: float,
) -> RankWatch:
    """Connects the processes of a run; every one calls it. `gather` gives the values of all, by rank, to every process."""
    places: list[tuple[str, int]] = gather((socket.gethostname(), os.getpid()))
    names = [f"process {number} (host {host}, pid {pid})" for number, (host, pid) in enumerate(places)]
    watch = RankWatch(names, rank, grace_seconds)
    problem, meeting = "", None
    if rank == 0:
        is_local = len({host for host, _ in places}) == 1
        addresses = ["127.0.0.1"] if is_local else [master_address, places[0][0], socket.getfqdn()]
        token = secrets.token_hex(16)  # keeps strangers out
        try:
            port = watch.listen(token, is_local=is_local)
            meeting = (list(dict.fromkeys(filter(None, addresses))), port, token)
        except OSError as error:
            problem = f"process 0 cannot listen: {error.strerror or error}"
    meeting = gather(meeting)[0]
    if rank > 0 and meeting is not None and (why := watch.connect(*meeting)):
        problem = f"process {rank} cannot reach process 0 at {why}"
    problems = [told for told in gather(problem) if told]
    if problems:
        note(
            f"{problems[0]}: the death of {len(problems)} of {len(names)} processes may show only after minutes."
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


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, name="portwright-ranks", daemon=True).start()


def _keep_alive(connection: socket.socket) -> None:
    """The kernels of both hosts ask each other for signs of life; busy or stopped processes take no part in that."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _SILENT_SECONDS // 3,
        "TCP_KEEPINTVL": _SILENT_SECONDS // 12,
        "TCP_KEEPCNT": 8,
        "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000,
        "TCP_NODELAY": 1,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_ACCEPTED = b"welcome\n"
_WATCHES: weakref.WeakSet[RankWatch] = weakref.WeakSet()


def _forget_watches() -> None:
    for watch in list(_WATCHES):
        watch.forget()
    _WATCHES.clear()


os.register_at_fork(after_in_child=_forget_watches)
