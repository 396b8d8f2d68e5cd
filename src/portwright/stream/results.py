"""A worker's messages put together again: results, in pieces, and failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portwright.errors import ExitStatus, PortwrightError
from portwright.stream import protocol
from portwright.stream.wire import allocate


class WorkFailed(PortwrightError):
    """A worker could not do an order; its message and cure, and `details["traceback"]`."""

    def __init__(self, message: str, cure: str = "", *, status: int = 2, traceback: str = "") -> None:
        super().__init__(message, cure, {"traceback": traceback} if traceback else None)
        known = {each.value for each in ExitStatus}
        self.status = ExitStatus(status) if status in known else ExitStatus.USAGE


class DeadlyOrderError(WorkFailed):
    """Several workers ended at the same order, which would end the next one too."""

    def __init__(self, killed: Sequence[str], what: str = "the same batch") -> None:
        names = f"{', '.join(killed[:-1])} and {killed[-1]}"
        super().__init__(
            f"workers {names} ended one after the other at {what}.",
            "Look into their logs: a reader that crashes at a sample, or a node that is short of memory.",
        )
        self.killed = list(killed)


@dataclass(frozen=True)
class Answer:
    """The whole answer to one order."""

    ticket: int
    result: memoryview | WorkFailed
    samples: int = 0
    seconds: float = 0.0


class Incoming:
    """Reads the messages of one worker. Each result gets memory of its own; a result that is not wanted is dropped."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        self.begun = 0  # ticket of the latest DEADLY_ORDER that the worker has begun
        self._is_wanted = is_wanted
        self._ticket = 0  # of the result that is coming in
        self._buffer: memoryview | None = None
        self._num_bytes = self._filled = self._samples = 0
        self._seconds = 0.0

    def take(self, message: bytes) -> Answer | None:
        """Takes one message; gives the answer that it completes. A malformed message is a ValueError."""
        kind = message[:1]
        if message == protocol.BUSY:
            return None
        if kind == protocol.BEGUN and len(message) == protocol.TICKET.size:
            _, self.begun = protocol.TICKET.unpack(message)
            return None
        if kind == protocol.FAILED and len(message) >= protocol.TICKET.size:
            return _read_failure(message)
        if kind == protocol.RESULT and len(message) >= protocol.RESULT_HEAD.size and not self._ticket:
            head = protocol.RESULT_HEAD.unpack_from(message)
            _, self._ticket, self._num_bytes, self._samples, self._seconds = head
            self._filled = 0
            self._buffer = allocate(self._num_bytes) if self._is_wanted(self._ticket) else None
            start = protocol.RESULT_HEAD.size
        elif kind == protocol.MORE and self._ticket:
            start = 1
        else:
            raise ValueError(f"a message of {len(message)} bytes of the kind {kind!r}")
        end = self._filled + len(message) - start
        if end > self._num_bytes:
            raise ValueError(f"{end:,} bytes of a result of {self._num_bytes:,}")
        if self._buffer is not None:
            self._buffer[self._filled : end] = memoryview(message)[start:]
        self._filled = end
        if end < self._num_bytes:
            return None
        result = self._buffer if self._buffer is not None else allocate(0)
        answer = Answer(self._ticket, result, self._samples, self._seconds)
        self._ticket, self._buffer = 0, None
        return answer


def _read_failure(message: bytes) -> Answer:
    _, ticket = protocol.TICKET.unpack_from(message)
    told = json.loads(message[protocol.TICKET.size :])
    failure = WorkFailed(
        str(told["message"]), str(told["cure"]), status=told["status"], traceback=str(told["traceback"])
    )
    return Answer(ticket, failure)
