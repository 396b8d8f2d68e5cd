"""Another value of an attribute for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of a module or a class until the block ends; what was inherited is inherited again then."""
    missing = object()
    before = vars(owner).get(name, missing)
    getattr(owner, name)  # a name that is not there is a mistake
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
