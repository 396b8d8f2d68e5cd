"""A worker's side: connects to the coordinator, does its orders one at a time, sends the results."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.stream import protocol
from portwright.stream.progress import telling
from portwright.stream.wire import Parts

import grpc  # type: ignore[import-untyped]  # isort: skip  (after protocol, which says how gRPC is to behave)

__all__ = ["Ending", "NoCoordinatorError", "WrongKeyError", "work"]

RETURN_SECONDS = 5.0  # to connect again to a coordinator that was there
PAUSE_SECONDS = 0.2  # between two attempts
HEED_SECONDS = 0.5  # pause before a deadly order: a worker that ends in it did not end at the order
WORD_SECONDS = 0.1  # for a message to go out


class Ending(Enum):
    """Why a worker has nothing more to do."""

    DONE = "done"  # the coordinator said goodbye
    LOST = "lost"  # the coordinator is gone without a word


class NoCoordinatorError(PortwrightError):
    """Nobody answered at the coordinator's address."""

    status = ExitStatus.FINDINGS


class WrongKeyError(UserError):
    """The process at the coordinator's address has another key."""


def work(
    address: str,
    key: str,
    name: str,
    handle: Callable[[bytes], Parts],
    *,
    note: Callable[[str], None],
    wait_seconds: float = 300.0,
) -> Ending:
    """Does what the coordinator orders, in this thread, until it says goodbye or is gone.

    `handle` gives the parts of a result, whose memory must stay as it is until it is sent. What it raises is raised at the
    coordinator. A connection that breaks is made again, within seconds; `wait_seconds` bounds the wait for the first.
    """
    protocol.split_address(address)
    before = set(threading.enumerate())
    try:
        return _serve(address, key, name, handle, note, wait_seconds)
    finally:
        _await_threads(before)


def _await_threads(before: set[threading.Thread]) -> None:
    """Waits for gRPC's threads, a second at most: one that is still in native code when the interpreter ends aborts the process."""
    deadline = time.monotonic() + 1.0
    for thread in set(threading.enumerate()) - before:
        if thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))


def _serve(
    address: str,
    key: str,
    name: str,
    handle: Callable[[bytes], Parts],
    note: Callable[[str], None],
    wait_seconds: float,
) -> Ending:
    session = os.urandom(16)
    deadline = time.monotonic() + wait_seconds
    was_accepted = False
    while True:
        channel = grpc.insecure_channel(address, options=protocol.CLIENT_OPTIONS)
        try:
            if _is_ready(channel, deadline):
                if not was_accepted:
                    note(f"Worker {name}: the coordinator at {address} is there.")
                connection = _Connection(channel, key, name, session, handle)
                connection.run()
                if connection.is_done:
                    return Ending.DONE
                if connection.is_stranger:
                    if was_accepted:  # our coordinator is gone, and another job has its port
                        return Ending.LOST
                    raise WrongKeyError(
                        f"The coordinator at {address} does not have this worker's key.",
                        "Let all tasks of one job read the same key, and no other job have the same port.",
                    )
                if connection.was_accepted:
                    was_accepted = True
                    deadline = time.monotonic() + RETURN_SECONDS
                    note(f"Worker {name}: the connection to {address} broke ({connection.why}).")
        finally:
            channel.close()
        if time.monotonic() >= deadline:
            if was_accepted:
                return Ending.LOST
            raise NoCoordinatorError(
                f"No coordinator answered at {address} within {wait_seconds:g} s.",
                "Look into the log of the first task, and whether the nodes can reach that port.",
            )
        time.sleep(PAUSE_SECONDS)


def _is_ready(channel: grpc.Channel, deadline: float) -> bool:
    ready = grpc.channel_ready_future(channel)
    try:
        ready.result(timeout=max(deadline - time.monotonic(), PAUSE_SECONDS))
    except grpc.FutureTimeoutError:
        return False
    finally:
        ready.cancel()
    return True


class _Connection:
    """One connection to the coordinator, from the first message to its end.

    One thread receives, so that a goodbye is known while an order is being done; a thread of gRPC's sends.
    """

    def __init__(
        self, channel: grpc.Channel, key: str, name: str, session: bytes, handle: Callable[[bytes], Parts]
    ) -> None:
        self.was_accepted = self.is_done = self.is_stranger = False
        self.why = ""
        self._key = key
        self._name = name
        self._handle = handle
        self._nonce = os.urandom(protocol.NONCE_BYTES)
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        metadata = (
            ("name-bin", name.encode(errors="replace")),
            ("host-bin", socket.gethostname().encode(errors="replace")),
            ("session-bin", session.hex().encode()),
            ("nonce-bin", self._nonce),
        )
        self._call = channel.stream_stream(protocol.METHOD)(self._messages(), metadata=metadata)

    def run(self) -> None:
        threading.Thread(target=self._listen, name="stream orders", daemon=True).start()
        try:
            with telling(self._say_busy):
                while (message := self._inbox.get()) is not None:
                    if not self.is_done:
                        self._take(message)
        finally:
            self._outbox.put(None)
            self._call.cancel()

    def _say_busy(self) -> None:
        self._outbox.put([protocol.BUSY])

    def _listen(self) -> None:
        try:
            for message in self._call:
                if message == protocol.GOODBYE:
                    self.is_done = True
                self._inbox.put(message)
        except grpc.RpcError:
            code = self._call.code()
            self.is_stranger = self.is_stranger or code is grpc.StatusCode.UNAUTHENTICATED
            self.why = code.name.lower() if code is not None else "ended"
        finally:
            self._inbox.put(None)

    def _messages(self) -> Iterator[bytes]:
        while (pieces := self._outbox.get()) is not None:
            yield from pieces

    def _take(self, message: bytes) -> None:
        kind = message[:1]
        if kind == protocol.CHALLENGE:
            nonce, proof = message[1 : 1 + protocol.NONCE_BYTES], message[1 + protocol.NONCE_BYTES :]
            self.is_stranger = not protocol.is_proof(proof, self._key, b"coordinator", self._nonce, nonce)
            # Sent even to a stranger: the coordinator then ends the call, and its log says why.
            self._outbox.put([protocol.prove(self._key, b"worker", self._nonce, nonce)])
        elif kind == protocol.WELCOME:
            if self.is_stranger:
                self._call.cancel()
            self.was_accepted = not self.is_stranger
        elif kind in (protocol.ORDER, protocol.DEADLY_ORDER) and self.was_accepted:
            _, ticket = protocol.TICKET.unpack_from(message)
            if kind == protocol.DEADLY_ORDER:
                time.sleep(HEED_SECONDS)
                self._outbox.put([protocol.TICKET.pack(protocol.BEGUN, ticket)])
                time.sleep(WORD_SECONDS)
            self._outbox.put(self._do(ticket, message[protocol.TICKET.size :]))

    def _do(self, ticket: int, body: bytes) -> Iterable[bytes]:
        start = time.perf_counter()
        try:
            parts = self._handle(body)
            views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
            num_bytes, samples = sum(map(len, views)), int(getattr(parts, "num_samples", 0))
            seconds = time.perf_counter() - start
            head = protocol.RESULT_HEAD.pack(protocol.RESULT, ticket, num_bytes, samples, seconds)
        except Exception as error:
            return [protocol.TICKET.pack(protocol.FAILED, ticket) + _tell_failure(error, self._name)]
        return cut(head, views)


def cut(head: bytes, views: Iterable[memoryview]) -> Iterator[bytes]:
    """Cuts a result into messages of bounded size, copying each byte once; the first begins with `head`."""
    piece: list[bytes | memoryview] = [head]
    room = protocol.PIECE_BYTES
    for view in views:
        start = 0
        while start < len(view):
            if not room:
                yield b"".join(piece)
                piece, room = [protocol.MORE], protocol.PIECE_BYTES
            taken = view[start : start + room]
            piece.append(taken)
            start += len(taken)
            room -= len(taken)
    yield b"".join(piece)


def _tell_failure(error: Exception, name: str) -> bytes:
    """A failure as JSON, short enough for one message."""
    lines = "".join(traceback.format_exception(error))
    if not isinstance(error, PortwrightError):
        error = UserError(f"{type(error).__name__}: {error}")
    told = {
        "message": f"Worker {name}: {error.message}"[:20_000],
        "cure": error.cure[:20_000],
        "status": int(error.status),
        "traceback": lines[-50_000:],
    }
    return json.dumps(told).encode()
