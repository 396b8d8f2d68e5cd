"""A worker that takes long over an order says that it makes progress, so that it is not taken for dead. Loads no gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_EVERY_SECONDS = 1.0


def _tell_nobody() -> None:
    pass


_tell: ContextVar[Callable[[], None]] = ContextVar("_tell", default=_tell_nobody)


def tell_progress() -> None:
    """Code that takes long over an order calls this as it gets on; the coordinator then leaves the order with this worker."""
    _tell.get()()


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` when code in the block calls `tell_progress`, at most once a second."""
    last = 0.0

    def tell_at_most_each_second() -> None:
        nonlocal last
        if (now := time.monotonic()) - last > _EVERY_SECONDS:
            last = now
            tell()

    token = _tell.set(tell_at_most_each_second)
    try:
        yield
    finally:
        _tell.reset(token)


@contextmanager
def busy(seconds: float) -> Iterator[None]:
    """Tells progress for code that cannot, such as a function that opens a data set; no longer than `seconds`, since it may hang."""
    tell, is_over = _tell.get(), threading.Event()
    if tell is _tell_nobody:
        yield
        return

    def keep_telling() -> None:
        give_up = time.monotonic() + seconds
        while not is_over.wait(_EVERY_SECONDS) and time.monotonic() < give_up:
            tell()

    thread = threading.Thread(target=keep_telling, name="stream busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
