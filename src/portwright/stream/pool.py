"""The coordinator's side: orders go out to workers, results come back in the order of the orders, each exactly once."""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.stream import protocol
from portwright.stream.schedule import Order, Run, Schedule, Seat
from portwright.stream.wire import Parts, allocate, gather

import grpc  # type: ignore[import-untyped]  # isort: skip  (after protocol, which says how gRPC is to behave)

__all__ = ["NoWorkersError", "Order", "Pool", "WorkFailed", "WorkerCount"]

TICK_SECONDS = 0.25  # how often a wait looks at the clock, and lets Python run signal handlers
GOODBYE_SECONDS = 2.0
HERE = "coordinator"  # the name under which work that was done here is counted


class WorkFailed(PortwrightError):
    """A worker could not do an order; its message and cure, and `details["traceback"]`."""

    def __init__(self, message: str, cure: str = "", *, status: int = 2, traceback: str = "") -> None:
        super().__init__(message, cure, {"traceback": traceback} if traceback else None)
        self.status = (
            ExitStatus(status) if status in {each.value for each in ExitStatus} else ExitStatus.USAGE
        )


class NoWorkersError(PortwrightError):
    """No worker is connected, and nothing else may do the work."""

    status = ExitStatus.FINDINGS


@dataclass(frozen=True)
class WorkerCount:
    """What a worker has delivered, duplicates not counted."""

    name: str
    host: str
    batches: int
    samples: int
    bytes: int
    busy_seconds: float  # spent making the batches
    alive: bool
    rate: float  # samples a second since it first connected


@dataclass
class _Tally:
    host: str
    since: float
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0


Result = memoryview | WorkFailed
_Seat = Seat[Result]
_Run = Run[Result]


@dataclass(eq=False)
class _Link:
    """A worker's stream: what is to be sent, and the result that is coming in."""

    seat: _Seat
    session: str
    outbox: queue.SimpleQueue[bytes | None]
    context: grpc.ServicerContext
    ticket: int = 0
    buffer: memoryview | None = None  # None while what comes is not wanted
    num_bytes: int = 0
    filled: int = 0
    samples: int = 0
    seconds: float = 0.0


class Pool:
    """Workers that may come and go at any time; `map` gives them work.

    `note` is told, in any thread, who comes and goes. Without a worker for `patience` seconds `map` does the work here.
    """

    def __init__(
        self,
        address: str,
        key: str,
        *,
        expected: int,
        note: Callable[[str], None],
        patience: float = 30.0,
    ) -> None:
        host, port = split_address(address)
        if not key:
            raise UserError(
                "The key of the stream is empty.", "Give all tasks of the job the same random string."
            )
        self._key = key
        self._expected = expected
        self._note = note
        self._patience = patience
        self._changed = threading.Condition()
        self._schedule: Schedule[Result] = Schedule(time.monotonic())
        self._links: list[_Link] = []
        self._tallies: dict[str, _Tally] = {}
        self._works_here = False
        self._is_closed = False
        self._server = grpc.server(_DaemonThreads(), options=protocol.SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(self._serve),))
        self.address = f"{host}:{_bind(self._server, host, port)}"
        self._server.start()
        self._unregister = _stop_at_exit(self)

    def map(
        self, orders: Iterator[Order], window: int, fallback: Callable[[bytes], Parts] | None
    ) -> Iterator[memoryview]:
        """Yields the result of each order, in their order, as an aligned, writable buffer.

        Orders are drawn in the caller's thread, while fewer than `window` of them are undelivered. Several maps may be
        open at once, such as training's and evaluation's; closing one drops what is outstanding of it. A failure on a
        worker is raised as WorkFailed when it is that order's turn.
        """
        if window < 1:
            raise UserError(f"A window of {window} orders lets none go out.", "Give 1 or more.")
        return self._deliver(iter(orders), window, fallback)

    def counts(self) -> list[WorkerCount]:
        """What each worker has delivered; a worker that came back under its name goes on counting."""
        with self._changed:
            alive = {link.seat.name for link in self._links}
            now = time.monotonic()
            return [
                WorkerCount(
                    name,
                    tally.host,
                    tally.batches,
                    tally.samples,
                    tally.bytes,
                    tally.busy_seconds,
                    name in alive,
                    tally.samples / max(now - tally.since, 1e-9),
                )
                for name, tally in self._tallies.items()
            ]

    def close(self) -> None:
        """Tells the workers to end, and stops listening."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            for link in self._links:
                link.outbox.put(protocol.GOODBYE)
            self._changed.notify_all()
        self._unregister()
        self._server.stop(GOODBYE_SECONDS).wait(2 * GOODBYE_SECONDS)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The caller's thread

    def _deliver(
        self, orders: Iterator[Order], window: int, fallback: Callable[[bytes], Parts] | None
    ) -> Iterator[memoryview]:
        with self._changed:
            run = self._schedule.open_run()
        source = _Source(orders)
        try:
            self._draw(run, source, window)
            while run.tasks:
                result = self._wait_for_first(run, fallback)
                if isinstance(result, WorkFailed):
                    raise result
                self._draw(run, source, window)  # the workers go on while the caller is busy with this one
                yield result
                del result  # what the caller lets go of is free while we wait for the next
            if source.error is not None:
                raise source.error
        finally:
            with self._changed:
                self._schedule.close_run(run)

    def _draw(self, run: _Run, source: _Source, window: int) -> None:
        while len(run.tasks) < window and (order := source.draw()) is not None:
            with self._changed:
                self._schedule.add(run, order)
                self._schedule.feed(time.monotonic())

    def _wait_for_first(self, run: _Run, fallback: Callable[[bytes], Parts] | None) -> Result:
        first = run.tasks[0]
        while True:
            with self._changed:
                self._schedule.prefer(run)
                while first.result is None:
                    if self._is_closed:
                        raise NoWorkersError(
                            "The pool of workers was closed while a batch was awaited.", "Open a new one."
                        )
                    now = time.monotonic()
                    silent = self._schedule.find_silent(now)
                    self._schedule.feed(now)
                    alone = self._schedule.alone_since
                    if silent or (
                        alone is not None and now - alone >= self._patience and first.holder is None
                    ):
                        break
                    self._changed.wait(TICK_SECONDS)
                else:
                    run.tasks.popleft()
                    return first.result
                is_mine = not silent
                if is_mine:
                    first.holder = HERE
            for seat, silence in silent:
                self._note(f"Worker {seat.name} is silent for {silence:.0f} s: others do its orders.")
            if is_mine:
                self._do_here(run, fallback)

    def _do_here(self, run: _Run, fallback: Callable[[bytes], Parts] | None) -> None:
        task = run.tasks[0]
        if fallback is None:
            raise NoWorkersError(
                f"No worker has been connected for {self._patience:.0f} s (expected: {self._expected}).",
                "Look into the log for what ended them.",
            )
        if not self._works_here:
            self._works_here = True
            self._note(
                f"WARNING: no worker has answered for {self._patience:.0f} s (expected: {self._expected}). "
                "The data is read by the training process itself, one batch at a time, until a worker comes."
            )
        start = time.monotonic()
        parts = fallback(task.order.body)
        buffer = gather(parts)
        with self._changed:
            if task.result is None:
                task.result = buffer
                seconds = time.monotonic() - start
                tally = self._tallies.setdefault(HERE, _Tally(HERE, start))
                _count(tally, getattr(parts, "num_samples", 0), len(buffer), seconds)

    # gRPC's threads: one sends orders to a worker, one hears its results

    def _serve(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        about = dict(context.invocation_metadata())
        name, host, session = (
            bytes(about.get(each, b"?")).decode(errors="replace")[:200]
            for each in ("name-bin", "host-bin", "session-bin")
        )
        worker_nonce = bytes(about.get("nonce-bin", b""))
        nonce = os.urandom(protocol.NONCE_BYTES)
        yield protocol.CHALLENGE + nonce + protocol.prove(self._key, b"coordinator", worker_nonce, nonce)
        try:
            proof = next(messages, b"")
        except grpc.RpcError:
            return
        if len(worker_nonce) != protocol.NONCE_BYTES or not protocol.is_proof(
            proof, self._key, b"worker", worker_nonce, nonce
        ):
            self._note(
                f"{name} on {host} ({context.peer()}) was turned away: its key is not the one of this job."
            )
            context.set_code(grpc.StatusCode.UNAUTHENTICATED)
            context.set_details("the key is not the coordinator's")
            return
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        seat = _Seat(
            name, lambda ticket, body: outbox.put(protocol.TICKET.pack(protocol.ORDER, ticket) + body)
        )
        link = _Link(seat, session, outbox, context)
        outbox.put(protocol.WELCOME)
        self._join(link, host)
        threading.Thread(
            target=self._listen, args=(link, messages), name=f"stream {name}", daemon=True
        ).start()
        while (message := outbox.get()) is not None:
            yield message
            if message is protocol.GOODBYE:
                return

    def _join(self, link: _Link, host: str) -> None:
        with self._changed:
            now = time.monotonic()
            for old in [each for each in self._links if each.session == link.session]:
                self._remove(old)  # its connection broke, and only the worker has noticed yet
            self._links.append(link)
            self._tallies.setdefault(link.seat.name, _Tally(host, now))
            self._schedule.join(link.seat, now)
            self._works_here = False
            number = len(self._links)
            if self._is_closed:
                link.outbox.put(protocol.GOODBYE)
            else:
                self._schedule.feed(now)
        self._note(f"Worker {link.seat.name} on {host} is connected ({number} of {self._expected}).")

    def _remove(self, link: _Link) -> int:
        """Under the lock: takes a link out and gives its orders to others; says how many."""
        if link not in self._links:
            return 0
        self._links.remove(link)
        link.outbox.put(None)
        now = time.monotonic()
        num_orders = self._schedule.leave(link.seat, now)
        self._schedule.feed(now)
        return num_orders

    def _listen(self, link: _Link, messages: Iterator[bytes]) -> None:
        why = "its connection ended"
        try:
            for message in messages:
                self._hear(link, message)
        except grpc.RpcError:
            pass  # how gRPC says that a stream was broken off
        except Exception as error:
            why = f"what it sent makes no sense ({type(error).__name__}: {error})"
            link.context.cancel()
        with self._changed:
            was_there = link in self._links
            num_orders = self._remove(link)
            number = len(self._links)
        if was_there and not self._is_closed:
            others = f"; {num_orders} orders go to others" if num_orders else ""
            self._note(
                f"Worker {link.seat.name} is gone: {why}{others} ({number} of {self._expected} are connected)."
            )

    def _hear(self, link: _Link, message: bytes) -> None:
        kind = message[:1]
        if kind == protocol.FAILED:
            _, ticket = protocol.TICKET.unpack_from(message)
            told = json.loads(message[protocol.TICKET.size :])
            failure = WorkFailed(
                told["message"], told["cure"], status=told["status"], traceback=told["traceback"]
            )
            self._finish(link, ticket, failure)
            return
        if kind == protocol.RESULT:
            _, link.ticket, link.num_bytes, link.samples, link.seconds = protocol.RESULT_HEAD.unpack_from(
                message
            )
            link.filled = 0
            with self._changed:
                is_wanted = self._schedule.wants(link.seat, link.ticket)
            link.buffer = allocate(link.num_bytes) if is_wanted else None
            start = protocol.RESULT_HEAD.size
        elif kind == protocol.MORE and link.ticket:
            start = 1
        else:
            raise ValueError(f"a message of the kind {kind!r}")
        end = link.filled + len(message) - start
        if end > link.num_bytes:
            raise ValueError(f"{end:,} bytes of a result of {link.num_bytes:,}")
        if link.buffer is not None:
            link.buffer[link.filled : end] = memoryview(message)[start:]
        link.filled = end
        link.seat.heard = time.monotonic()
        if link.filled == link.num_bytes:
            result = link.buffer if link.buffer is not None else allocate(0)
            ticket, link.ticket, link.buffer = link.ticket, 0, None
            self._finish(link, ticket, result)

    def _finish(self, link: _Link, ticket: int, result: Result) -> None:
        with self._changed:
            now = time.monotonic()
            task = self._schedule.answer(link.seat, ticket, result, now)
            self._schedule.feed(now)
            if task is None:
                return
            self._works_here = False
            if isinstance(result, memoryview):
                _count(self._tallies[link.seat.name], link.samples, len(result), link.seconds)
            if task is task.run.tasks[0]:
                self._changed.notify_all()


class _Source:
    """Draws orders; an error of the iterator is kept until all that came before it is delivered."""

    def __init__(self, orders: Iterator[Order]) -> None:
        self._orders: Iterator[Order] | None = orders
        self.error: Exception | None = None

    def draw(self) -> Order | None:
        if self._orders is None:
            return None
        try:
            return next(self._orders)
        except StopIteration:
            pass
        except Exception as error:
            self.error = error
        self._orders = None
        return None


class _DaemonThreads(futures.Executor):
    """A thread a worker's stream, which does not keep the interpreter from ending as those of a ThreadPoolExecutor do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="stream", daemon=True).start()
        return future


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, serve: Callable[..., Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(serve)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._method if handler_call_details.method == protocol.METHOD else None


def split_address(address: str) -> tuple[str, int]:
    """Splits host:port; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"The address {address!r} is not host:port.", "Give one such as node-1:23111.")
    return host, int(port)


def _bind(server: grpc.Server, host: str, port: int) -> int:
    """Listens on all interfaces, unless the host is a loopback's: a node's own name often means one that others do not reach."""
    is_loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    for name in [host] if is_loopback else ["[::]", "0.0.0.0"]:
        try:
            bound = server.add_insecure_port(f"{name}:{port}")
        except RuntimeError:
            continue
        if bound:
            return int(bound)
    raise UserError(
        f"Cannot listen on port {port} of {host}: it is taken, or not allowed here.", "Choose another port."
    )


def _stop_at_exit(pool: Pool) -> Callable[[], None]:
    """Stops the server when the interpreter ends; without a goodbye, since nobody said that the work is done."""
    server = weakref.ref(pool._server)

    def stop() -> None:
        if (alive := server()) is not None:
            alive.stop(None)

    atexit.register(stop)
    return lambda: atexit.unregister(stop)


def _count(tally: _Tally, samples: int, num_bytes: int, seconds: float) -> None:
    tally.batches += 1
    tally.samples += samples
    tally.bytes += num_bytes
    tally.busy_seconds += seconds
