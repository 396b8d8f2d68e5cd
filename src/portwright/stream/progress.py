"""A word that an order is being worked at: whoever takes long over it is not taken for dead. Loads no gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_EVERY_SECONDS = 1.0


def _to_nobody() -> None:
    pass


_tell: ContextVar[Callable[[], None]] = ContextVar("_tell", default=_to_nobody)


def tell_progress() -> None:
    """Said by whoever reads again what was read before, and gets on with it: no reason to give the order to another."""
    _tell.get()()


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Passes on what is told inside, at most once a second."""
    last = 0.0

    def tell_now_and_then() -> None:
        nonlocal last
        if (now := time.monotonic()) - last > _EVERY_SECONDS:
            last = now
            tell()

    token = _tell.set(tell_now_and_then)
    try:
        yield
    finally:
        _tell.reset(token)


@contextmanager
def busy(seconds: float) -> Iterator[None]:
    """Tells it for what cannot tell it itself, such as a function that opens a data set; for so long at most, since it may hang."""
    tell, is_over = _tell.get(), threading.Event()
    if tell is _to_nobody:
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
