"""sambaflow.samba.materialize."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def materialize(model: T) -> Iterator[T]:
    """Accepted: every weight has its data already."""
    yield model
