"""Another value of an attribute for a while, or another function for good."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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


def in_place_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorates the function that is called in place of another from now on: it gets the other one before the arguments."""
    original = getattr(owner, name)

    def replace(called: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return called(original, *args, **kwargs)

        setattr(owner, name, call)

    return replace
