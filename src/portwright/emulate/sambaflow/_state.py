"""What the parts of the emulator must know of each other in one process: one device, as one session of the vendor's has."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

command: str | None = None  # of parse_app_args
is_tracing = False
stale: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose device weights are newer


@contextmanager
def tracing() -> Iterator[None]:
    """The model is called to be traced, which is no use of the host's weights."""
    global is_tracing
    before, is_tracing = is_tracing, True
    try:
        yield
    finally:
        is_tracing = before
