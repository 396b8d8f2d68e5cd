"""Comparing results of models."""

from __future__ import annotations

import torch


def allclose(ref, other):
    """Whether tensors, or nested lists and tuples of them, have the same structure and nearly the same values."""
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and ref.shape == other.shape and torch.allclose(other, ref)
    if not isinstance(ref, (list, tuple)):
        raise AssertionError(f"only tensors, lists and tuples are compared, not a {type(ref).__name__}.")
    kind = tuple if isinstance(ref, tuple) else list
    if not isinstance(other, kind) or len(ref) != len(other):
        return False
    return all(allclose(mine, theirs) for mine, theirs in zip(ref, other, strict=True))
