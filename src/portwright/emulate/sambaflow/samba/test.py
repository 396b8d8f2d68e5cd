"""sambaflow.samba.test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def consistency_test(*args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Accepted: the decorated function is called once; what the vendor's does beyond that is not public."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    return decorate
