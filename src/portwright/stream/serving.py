"""A gRPC server for one method: where it listens, the threads it has, how it ends."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from portwright.errors import UserError
from portwright.stream import protocol

import grpc  # type: ignore[import-untyped]  # isort: skip  (after protocol, which says how gRPC is to behave)

Serve = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Server:
    """Serves `serve` at `address`, in a thread a stream, until `stop`."""

    def __init__(self, address: str, serve: Serve, threads: DaemonThreads) -> None:
        host, port = protocol.split_address(address)
        self._threads = threads
        self._server = grpc.server(threads, options=protocol.SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(serve),))
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


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, serve: Serve) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(serve)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._method if handler_call_details.method == protocol.METHOD else None


def _stop_at_exit(server: grpc.Server, threads: DaemonThreads) -> Callable[[], None]:
    """Stops the server when the interpreter ends: streams that are still open end without a goodbye."""
    reference = weakref.ref(server)

    def stop() -> None:
        if (alive := reference()) is not None:
            alive.stop(None).wait(1.0)
            threads.join()

    atexit.register(stop)
    return lambda: atexit.unregister(stop)
