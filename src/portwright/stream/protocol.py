"""What coordinator and workers say to each other: messages on one gRPC stream a worker, and how both prove that they know the key.

    coordinator                                    worker
    CHALLENGE nonce, proof                 ◀──     opens the stream; name, host, session and its nonce as metadata
                                           ◀──     proof
    WELCOME                                ──▶
    ORDER ticket, body  (a few in flight)  ──▶     DEADLY_ORDER: the same, where a worker has ended at it before
                                           ◀──     BEGUN ticket, of a DEADLY_ORDER
                                           ◀──     BUSY, now and then while an order takes long and gets on
                                           ◀──     RESULT ticket, length, samples, seconds, first bytes; MORE bytes ...
                                           ◀──     FAILED ticket, JSON
    GOODBYE                                ──▶

The key itself is never sent: each side shows an HMAC over both nonces.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.stream.wire import allocate

# Read by gRPC when it is loaded or first used. Its fork handlers print a warning at every fork, and processes that are
# forked from ours (a DataLoader's) never use gRPC; its own log is noise beside the notes; compute nodes' names are in
# /etc/hosts or whatever else libc knows, and not always in DNS.
for _name, _value in (
    ("GRPC_ENABLE_FORK_SUPPORT", "0"),
    ("GRPC_VERBOSITY", "NONE"),
    ("GRPC_DNS_RESOLVER", "native"),
):
    os.environ.setdefault(_name, _value)

METHOD: Final = "/portwright.Stream/Work"
PIECE_BYTES: Final = 1 << 20  # of a result a message: the fastest of the sizes tried, see docs/benchmarks.md

CHALLENGE, WELCOME, ORDER, DEADLY_ORDER, GOODBYE = b"C", b"W", b"O", b"D", b"G"
RESULT, MORE, FAILED, BEGUN, BUSY = b"R", b"M", b"F", b"N", b"B"
TICKET: Final = struct.Struct("<cQ")
RESULT_HEAD: Final = struct.Struct("<cQQQd")  # kind, ticket, bytes of the whole, samples, seconds at work
NONCE_BYTES: Final = 32

PING_MS, PING_TIMEOUT_MS = 10_000, 20_000  # a node that is gone without a word is noticed after their sum
COMMON_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # newer versions read this one too
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS: Final = (
    *COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second coordinator on the same port would get half of the workers
    ("grpc.max_receive_message_length", PIECE_BYTES + (1 << 16)),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_MS // 2),
)
CLIENT_OPTIONS: Final = (
    *COMMON_OPTIONS,
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # the nodes of a job talk to each other, whatever http_proxy says
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def prove(key: str, side: bytes, worker_nonce: bytes, coordinator_nonce: bytes) -> bytes:
    """What `side` sends to prove that it has the key."""
    return hmac.new(key.encode(), side + worker_nonce + coordinator_nonce, hashlib.sha256).digest()


def is_proof(shown: bytes, key: str, side: bytes, worker_nonce: bytes, coordinator_nonce: bytes) -> bool:
    return hmac.compare_digest(shown, prove(key, side, worker_nonce, coordinator_nonce))


def split_address(address: str) -> tuple[str, int]:
    """Splits host:port; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"The address {address!r} is not host:port.", "Give one such as node-1:23111.")
    return host, int(port)


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
        if message == BUSY:
            return None
        if kind == BEGUN and len(message) == TICKET.size:
            _, self.begun = TICKET.unpack(message)
            return None
        if kind == FAILED and len(message) >= TICKET.size:
            return _read_failure(message)
        if kind == RESULT and len(message) >= RESULT_HEAD.size and not self._ticket:
            head = RESULT_HEAD.unpack_from(message)
            _, self._ticket, self._num_bytes, self._samples, self._seconds = head
            self._filled = 0
            self._buffer = allocate(self._num_bytes) if self._is_wanted(self._ticket) else None
            start = RESULT_HEAD.size
        elif kind == MORE and self._ticket:
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
    _, ticket = TICKET.unpack_from(message)
    told = json.loads(message[TICKET.size :])
    failure = WorkFailed(
        str(told["message"]), str(told["cure"]), status=told["status"], traceback=str(told["traceback"])
    )
    return Answer(ticket, failure)
