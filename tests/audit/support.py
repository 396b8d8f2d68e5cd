"""What drawn programs import: a loss over whatever comes out, and a way to see that something was evaluated."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def note(name: str, value: T) -> T:
    print(name)
    return value


def total(value: object) -> Tensor:
    """A number that every floating-point element has a part in, each with another weight."""
    if isinstance(value, (tuple, list)):
        return sum((total(part) for part in value), torch.zeros(()))
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return torch.zeros(())
    value = value.to_dense().contiguous()  # sums go through memory in its order
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    weights = torch.arange(1, value.numel() + 1, dtype=torch.float32).reshape(value.shape)
    return (value.float() * weights.sin()).sum()
