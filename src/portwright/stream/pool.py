"""The coordinator's side: orders go out to workers, results come back in the order of the orders, each exactly once."""

from __future__ import annotations

import atexit
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from dataclasses import dataclass, field, replace
from typing import Any

from portwright.errors import ExitStatus, PortwrightError, UserError
from portwright.stream import protocol
from portwright.stream.protocol import Answer, DeadlyOrderError, Incoming, WorkFailed
from portwright.stream.schedule import Order, Run, Schedule, Seat
from portwright.stream.wire import Parts, gather

import grpc  # type: ignore[import-untyped]  # isort: skip  (after protocol, which says how gRPC is to behave)

__all__ = ["DeadlyOrderError", "NoWorkersError", "Order", "Pool", "WorkFailed", "WorkerCount"]

TICK_SECONDS = 0.25  # how often a wait looks at the clock, and lets Python run signal handlers
GOODBYE_SECONDS = 2.0
DEADLY = 3  # once so many workers have ended at an order, no other worker gets it
DEADLY_HERE = 2  # once so many have, this process, which trains, does not try it either
HERE = "coordinator"  # the name under which work that was done here is counted

Result = memoryview | WorkFailed
_Seat = Seat[Result]
_Run = Run[Result]


class NoWorkersError(PortwrightError):
    """No worker is connected, and nothing else may do the work."""

    status = ExitStatus.FINDINGS


@dataclass(frozen=True)
class WorkerCount:
    """What a worker has delivered, duplicates not counted."""

    name: str
    host: str
    since: float = field(repr=False)  # when it first connected
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0  # spent making the batches
    alive: bool = False
    rate: float = 0.0  # samples a second since it first connected

    def after(self, samples: int, num_bytes: int, seconds: float) -> WorkerCount:
        """The count after one more batch."""
        return replace(
            self,
            batches=self.batches + 1,
            samples=self.samples + samples,
            bytes=self.bytes + num_bytes,
            busy_seconds=self.busy_seconds + seconds,
        )


@dataclass(eq=False)
class _Link:
    """A worker's stream."""

    seat: _Seat
    host: str
    session: str
    outbox: queue.SimpleQueue[bytes | None]
    context: grpc.ServicerContext


class Pool:
    """Workers that may come and go at any time; `map` gives them work.

    `note` gets a line, in any thread, when a worker comes or goes. Without a worker for `patience` seconds `map` does the work here.
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
        self._key = key
        self._expected = expected
        self._note = note
        self._patience = patience
        self._changed = threading.Condition()
        self._schedule: Schedule[Result] = Schedule(time.monotonic())
        self._links: list[_Link] = []
        self._counts: dict[str, WorkerCount] = {}
        self._works_here = False
        self._is_closed = False
        self._threads = DaemonThreads()
        self._server = Server(address, self._serve, self._threads)  # from here on workers may come
        self.address = self._server.address

    def map(
        self, orders: Iterator[Order], window: int, fallback: Callable[[bytes], Parts] | None
    ) -> Iterator[memoryview]:
        """Yields the result of each order, in their order, as an aligned, writable buffer.

        Orders are drawn in the caller's thread, while fewer than `window` of them are undelivered. Several maps may be
        open at once, such as training's and evaluation's; closing one drops its outstanding orders. A failure on a
        worker is raised as WorkFailed when it is that order's turn.
        """
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
                del result  # memory that the caller drops is free while we wait for the next
            if source.error is not None:
                raise source.error
        finally:
            with self._changed:
                self._schedule.close_run(run)

    def counts(self) -> list[WorkerCount]:
        """What each worker has delivered; a worker that comes back under its name keeps its count."""
        with self._changed:
            alive, now = {link.seat.name for link in self._links}, time.monotonic()
            return [
                replace(each, alive=each.name in alive, rate=each.samples / max(now - each.since, 1e-9))
                for each in self._counts.values()
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
        self._server.stop(GOODBYE_SECONDS)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The caller's thread

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
        if len(task.killed) >= DEADLY_HERE:
            raise DeadlyOrderError(task.killed)
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
                now = time.monotonic()
                before = self._counts.get(HERE, WorkerCount(HERE, socket.gethostname(), start))
                self._counts[HERE] = before.after(getattr(parts, "num_samples", 0), len(buffer), now - start)

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

        def send(ticket: int, body: bytes, has_killed: bool) -> None:
            kind = protocol.DEADLY_ORDER if has_killed else protocol.ORDER
            outbox.put(protocol.TICKET.pack(kind, ticket) + body)

        seat = _Seat(name, send)
        link = _Link(seat, host, session, outbox, context)
        outbox.put(protocol.WELCOME)
        self._join(link)
        self._threads.submit(self._listen, link, messages)
        while (message := outbox.get()) is not None:
            yield message
            if message is protocol.GOODBYE:
                return

    def _join(self, link: _Link) -> None:
        with self._changed:
            now = time.monotonic()
            for old in [each for each in self._links if each.session == link.session]:
                self._remove(old)  # its connection broke, which only the worker has noticed yet
            self._links.append(link)
            before = self._counts.get(link.seat.name, WorkerCount(link.seat.name, link.host, now))
            self._counts[link.seat.name] = replace(before, host=link.host)
            self._schedule.join(link.seat, now)
            self._works_here = False
            number = len(self._links)
            if self._is_closed:
                link.outbox.put(protocol.GOODBYE)
            else:
                self._schedule.feed(now)
        self._note(f"Worker {link.seat.name} on {link.host} is connected ({number} of {self._expected}).")

    def _remove(self, link: _Link) -> int:
        """Removes a link and gives its orders to other workers; returns how many. The caller holds the lock."""
        if link not in self._links:
            return 0
        self._links.remove(link)
        link.outbox.put(None)
        now = time.monotonic()
        num_orders = self._schedule.leave(link.seat, now)
        task = link.seat.current
        enough = min(DEADLY, max(DEADLY_HERE, self._expected))
        if task is not None and task.is_wanted and len(task.killed) >= enough:
            task.result = DeadlyOrderError(task.killed)
            self._changed.notify_all()
        self._schedule.feed(now)
        return num_orders

    def _listen(self, link: _Link, messages: Iterator[bytes]) -> None:
        why = "its connection ended"
        try:
            incoming = Incoming(lambda ticket: self._is_wanted(link, ticket))
            for message in messages:
                answer = incoming.take(message)
                link.seat.heard = time.monotonic()
                link.seat.begun = incoming.begun
                if answer is not None:
                    self._finish(link, answer)
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

    def _is_wanted(self, link: _Link, ticket: int) -> bool:
        with self._changed:
            return self._schedule.is_wanted(link.seat, ticket)

    def _finish(self, link: _Link, answer: Answer) -> None:
        with self._changed:
            now = time.monotonic()
            task = self._schedule.answer(link.seat, answer.ticket, answer.result, now)
            self._schedule.feed(now)
            if task is None:
                return
            self._works_here = False
            if isinstance(answer.result, memoryview):
                before = self._counts[link.seat.name]
                self._counts[link.seat.name] = before.after(
                    answer.samples, len(answer.result), answer.seconds
                )
            if task.run.tasks and task is task.run.tasks[0]:
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


Serve = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Server:
    """Serves `serve` at `address`, in a thread a stream, until `stop`."""

    def __init__(self, address: str, serve: Serve, threads: DaemonThreads) -> None:
        host, port = protocol.split_address(address)
        self._threads = threads
        self._server = grpc.server(threads, options=protocol.SERVER_OPTIONS)
        _, service, method = protocol.METHOD.split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(serve)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.address = f"{host}:{_bind(self._server, host, port)}"
        before = set(threading.enumerate())
        self._server.start()
        self._threads.adopt(set(threading.enumerate()) - before)
        self._unregister = _stop_at_exit(self._server, threads)

    def stop(self, grace_seconds: float) -> None:
        """Takes no new streams, and gives those that there are some time to end."""
        self._unregister()
        self._server.stop(grace_seconds).wait(2 * grace_seconds)
        self._threads.join()


def _bind(server: grpc.Server, host: str, port: int) -> int:
    """Listens on all interfaces, unless the host is a loopback's: a node's own name often means one that others do not reach."""
    is_loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    for name in [host] if is_loopback else ["[::]", "0.0.0.0"]:
        try:
            bound = server.add_insecure_port(f"{name}:{port}")
        except RuntimeError:
            continue
        if bound:  # older versions of gRPC give 0 where newer ones raise
            return int(bound)
    raise UserError(
        f"Cannot listen on port {port} of {host}: it is taken, or not allowed here.", "Choose another port."
    )


class DaemonThreads(futures.Executor):
    """A thread a call, none of which keeps the interpreter from ending as those of a ThreadPoolExecutor do."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=work, name="stream", daemon=True)
        self.adopt([thread])
        thread.start()
        return future

    def adopt(self, threads: Iterable[threading.Thread]) -> None:
        """`join` waits for these threads too; threads that have ended are forgotten."""
        self._threads = [each for each in self._threads if each.is_alive() or each.ident is None]
        self._threads += threads

    def join(self) -> None:
        """Waits for all, a second at most: one that is in gRPC's code while the interpreter ends can abort the process."""
        deadline = time.monotonic() + 1.0
        for thread in list(self._threads):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))


def _stop_at_exit(server: grpc.Server, threads: DaemonThreads) -> Callable[[], None]:
    """Stops the server when the interpreter ends: streams that are still open end without a goodbye."""
    reference = weakref.ref(server)

    def stop() -> None:
        if (alive := reference()) is not None:
            alive.stop(None).wait(1.0)
            threads.join()

    atexit.register(stop)
    return lambda: atexit.unregister(stop)
