"""sambaflow.samba.directives: hints to the compiler. They change how a program is laid out and never what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def op_fusion(*args: Any, **options: Any) -> Iterator[None]:
    """Accepted, no effect."""
    yield


@contextmanager
def sdpa_directives(*args: Any, **options: Any) -> Iterator[None]:
    """Accepted, no effect."""
    yield
