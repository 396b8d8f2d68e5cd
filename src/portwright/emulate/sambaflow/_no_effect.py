"""What scripts call of SambaFlow that changes no value: accepted without any effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def op_fusion(*args: Any, **options: Any) -> Iterator[None]:
    """A hint to the compiler."""
    yield


sdpa_directives = op_fusion
lazy_param = op_fusion  # saves memory on the host: weights are made at once here
patched_torch = op_fusion  # has nothing to patch: SambaTensors are torch's here


@contextmanager
def materialize(model: T) -> Iterator[T]:
    """Every weight has its data already."""
    yield model


def disable_sgd_stoc() -> None:
    """There is no stochastic rounding to switch off: the emulator rounds to nearest."""


def is_internal() -> bool:
    return False


def consistency_test(*args: Any, **options: Any) -> Callable[[T], T]:
    """The decorated function is called once; what the vendor's does beyond that is not public."""
    return lambda function: function


class ConvTilingMetadata:
    """A hint to the compiler."""

    key = "conv_tiling"

    def __init__(self, original_size: Any = None, **options: Any) -> None:
        self.original_size = original_size


class Profiler:
    """An emulated run has no times worth keeping."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._num_events = 0

    def start_event(self, name: str, *args: Any, **options: Any) -> int:
        self._num_events += 1
        return self._num_events

    def end_event(self, event: Any = None, *args: Any, **options: Any) -> None:
        pass
