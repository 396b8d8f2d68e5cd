"""The trace that is going on, for whoever must know of it: at most one, as a model is compiled by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

_lock = threading.RLock()  # models of two threads are compiled one after the other
_watch: Watch | None = None
_thread = 0


def current() -> Watch | None:
    """The watch over the model that this thread is compiling."""
    return _watch if _watch is not None and threading.get_ident() == _thread else None


@contextmanager
def active(watch: Watch) -> Iterator[None]:
    global _watch, _thread
    with _lock:
        outer = _watch, _thread
        _watch, _thread = watch, threading.get_ident()
        try:
            yield
        finally:
            _watch, _thread = outer


@contextmanager
def trusted() -> Iterator[None]:
    """What runs inside stands for one op of PopTorch's own: the ops that it is computed with here are not judged."""
    watch = current()
    if watch is None:
        yield
        return
    watch.num_trusted += 1
    try:
        yield
    finally:
        watch.num_trusted -= 1
