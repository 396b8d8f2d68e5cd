"""How what an update computes in float32 is rounded where the device keeps half numbers: to the nearest, or at random.

Stochastic rounding goes up or down with a probability that makes the mean exact, so that updates which are smaller than half a
step of a weight still count on average. The random numbers are the device's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_SMALLEST_NORMAL = torch.finfo(torch.float16).smallest_normal
_STEP_BELOW = 2.0**-24  # between half numbers that are smaller than the smallest normal one
_DROPPED_BITS = 13  # of a float32's mantissa, which half does not have
_is_stochastic: ContextVar[bool] = ContextVar("is_stochastic", default=False)


@contextmanager
def rounding(*, stochastic: bool) -> Iterator[None]:
    """Has `to` and `store` round at random inside, from torch's generator as it is there."""
    token = _is_stochastic.set(stochastic)
    try:
        yield
    finally:
        _is_stochastic.reset(token)


def is_stochastic() -> bool:
    return _is_stochastic.get()


def to(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 tensor in the type that the device keeps it in."""
    if dtype == torch.float16 and _is_stochastic.get() and value.dtype == torch.float32:
        return _at_random(value)
    return value.to(dtype)


def store(target: Tensor, value: Tensor) -> None:
    """Writes a float32 tensor into one of the device."""
    target.copy_(to(value, target.dtype))


def _at_random(value: Tensor) -> Tensor:
    noise = torch.randint(0, 1 << _DROPPED_BITS, value.shape, dtype=torch.int32)
    kept = (value.contiguous().view(torch.int32) + noise) & -(1 << _DROPPED_BITS)
    normal = kept.view(torch.float32)
    size = value.abs()
    small = torch.floor(value / _STEP_BELOW + noise / (1 << _DROPPED_BITS)) * _STEP_BELOW
    rounded = torch.where(size < _SMALLEST_NORMAL, small, normal)
    # Beyond the largest half number there is no neighbour to go to, nor is there one of nan.
    is_within = size <= torch.finfo(torch.float16).max
    return torch.where(is_within, rounded, value).half()
