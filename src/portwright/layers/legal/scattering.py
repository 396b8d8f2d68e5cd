"""Writing to indexed places, by scatters: the front end cannot lower torch's index_put."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from portwright.layers.legal.positions import broadcast_shapes, flat_index

__all__ = ["index_add", "index_copy", "index_put", "scatter_reduce", "take"]


def index_put(
    input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """torch.index_put for integer indices of the leading dimensions."""
    given = list(indices)
    if not is_leading_index(given):
        raise ValueError("index_put has an equal form for integer indices of the leading dimensions")
    index, shape = _linear(input, [part for part in given if part is not None])
    rest = list(input.shape[len(given) :])
    flat = input.reshape(-1, *rest)
    filled = values.to(input.dtype).expand(*shape, *rest).reshape(-1, *rest)
    spread = index.reshape(-1, *[1] * len(rest)).expand(-1, *rest)
    written = flat.scatter_add(0, spread, filled) if accumulate else flat.scatter(0, spread, filled)
    return written.reshape(input.shape)


def is_leading_index(indices: Sequence[Any]) -> bool:
    return bool(indices) and all(
        isinstance(part, Tensor) and part.dtype in (torch.int64, torch.int32) for part in indices
    )


def _linear(input: Tensor, indices: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    shape = list(broadcast_shapes(*(part.shape for part in indices)))
    places = [
        torch.where(part < 0, part + size, part).to(torch.int64).expand(shape)
        for size, part in zip(input.shape, indices, strict=False)
    ]
    return flat_index(places, input.shape), shape


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """torch.index_copy."""
    return input.scatter(dim, _spread(index, dim, source), source)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """torch.index_add."""
    return input.scatter_add(dim, _spread(index, dim, source), source if alpha == 1 else source * alpha)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """torch.scatter_reduce by sum and with the input's own values; torch's own for the others."""
    if reduce != "sum" or not include_self:
        return input.scatter_reduce(dim, index, src, reduce, include_self=include_self)
    return input.scatter_add(dim, index, src)


def _spread(index: Tensor, dim: int, source: Tensor) -> Tensor:
    dim = dim % source.dim()
    return (
        index.to(torch.int64)
        .reshape([-1 if at == dim else 1 for at in range(source.dim())])
        .expand(source.shape)
    )


def take(input: Tensor, index: Tensor) -> Tensor:
    """torch.take."""
    size = math.prod(input.shape)
    at = torch.where(index < 0, index + size, index)
    return input.flatten().gather(0, at.flatten()).reshape(index.shape)
