"""Makes activation checkpointing a plain call, and removes a vendor's wrappers, while a legalised model runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

__all__ = ["checkpoint"]


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """torch.utils.checkpoint.checkpoint, without recomputation: what to keep is for the target's compiler to decide."""
    return function(*args, **kwargs)


_lock = threading.Lock()
_depth = 0
_saved: list[tuple[Any, str, Any]] = []


@contextmanager
def plain_calls(note: Callable[[], None]) -> Iterator[None]:
    """Within, torch's checkpoint only calls its function, however it was imported, and F.binary_cross_entropy is torch's
    own (the SDK's wrapper raises before the call can be redirected). Shared by all threads and nested uses."""
    global _depth
    with _lock:
        if _depth == 0:
            _saved[:] = list(_patch(note))
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for holder, name, value in _saved:
                    setattr(holder, name, value)
                _saved.clear()


def _patch(note: Callable[[], None]) -> Iterator[tuple[Any, str, Any]]:
    def keep_all(*args: Any, **kwargs: Any) -> Iterator[None]:
        note()
        yield

    class PlainFunction:
        @staticmethod
        def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
            note()
            return function(*args)

    changes: list[tuple[Any, str, Any]] = [
        (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", keep_all),
        (torch.utils.checkpoint, "CheckpointFunction", PlainFunction),
        (
            torch.nn.functional,
            "binary_cross_entropy",
            inspect.unwrap(torch.nn.functional.binary_cross_entropy),
        ),
    ]
    for holder, name, value in changes:
        before = getattr(holder, name, None)
        if before is not None and before is not value:
            setattr(holder, name, value)
            yield holder, name, before
