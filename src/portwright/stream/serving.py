"""A gRPC server for one method: where it listens, the threads it has, how it ends."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from portwright.errors import UserError
from portwright.stream import protocol

import grpc  # type: ignore[import-untyped]  # isort: skip  (after protocol, which says how gRPC is to behave)

Serve = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Server:
    """Serves `serve` at `address`, in a thread a stream, until `stop`."""

    def __init__(self, address: str, serve: Serve) -> None:
        host, port = protocol.split_address(address)
        self._server = grpc.server(_DaemonThreads(), options=protocol.SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(serve),))
        self.address = f"{host}:{_bind(self._server, host, port)}"
        self._server.start()
        self._unregister = _stop_at_exit(self._server)

    def stop(self, grace_seconds: float) -> None:
        """Takes no new streams, and gives those that there are some time to end."""
        self._unregister()
        self._server.stop(grace_seconds).wait(2 * grace_seconds)


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


class _DaemonThreads(futures.Executor):
    """A thread a stream, which does not keep the interpreter from ending as those of a ThreadPoolExecutor do."""

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
    def __init__(self, serve: Serve) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(serve)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._method if handler_call_details.method == protocol.METHOD else None


def _stop_at_exit(server: grpc.Server) -> Callable[[], None]:
    """Stops the server when the interpreter ends: streams that are still open end without a goodbye."""
    reference = weakref.ref(server)

    def stop() -> None:
        if (alive := reference()) is not None:
            alive.stop(None)

    atexit.register(stop)
    return lambda: atexit.unregister(stop)
