"""Diagonals and triangles, by comparing positions instead of scattering."""

from __future__ import annotations

import torch
from torch import Tensor

from portwright.layers.legal.positions import broadcast_shapes, rising

__all__ = ["cross", "diag", "diag_embed", "diagonal", "linalg_cross", "trace", "tril", "triu"]


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """torch.diagonal: a masked sum over rows, whose gradient needs no scatter into a diagonal. The result is a copy."""
    first, second = rising(dim1, input.dim())[0], rising(dim2, input.dim())[0]
    if first == second:
        raise RuntimeError(f"the diagonal of one dimension with itself: {dim1} and {dim2}")
    moved = input.movedim((first, second), (-2, -1))
    rows, columns = moved.shape[-2], moved.shape[-1]
    skip_rows, skip_columns = max(-offset, 0), max(offset, 0)
    size = max(min(rows - skip_rows, columns - skip_columns), 0)
    if size == 0:
        return moved[..., :0, 0] if columns else moved.new_zeros(*moved.shape[:-2], 0)
    square = moved[..., skip_rows : skip_rows + size, skip_columns : skip_columns + size]
    return torch.where(_eye(size, input), square, torch.zeros_like(square)).sum(-1, dtype=input.dtype)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """torch.diag_embed."""
    num_dims = input.dim() + 1
    first, second = rising(dim1, num_dims)[0], rising(dim2, num_dims)[0]
    if first == second:
        raise RuntimeError(f"the diagonal of one dimension with itself: {dim1} and {dim2}")
    if first > second:
        first, second, offset = second, first, -offset
    size = input.shape[-1]
    spread = input.unsqueeze(-1).expand(*input.shape, size)
    square = torch.where(_eye(size, input), spread, torch.zeros_like(spread))
    before, after = max(offset, 0), max(-offset, 0)
    square = torch.nn.functional.pad(square, (before, after, after, before))
    return square.movedim((-2, -1), (first, second))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """torch.diag."""
    if input.dim() == 1:
        return diag_embed(input, diagonal)
    if input.dim() == 2:
        return _diagonal(input, diagonal)
    raise RuntimeError(f"diag takes a vector or a matrix, not {input.dim()} dimensions")


_diagonal = diagonal


def trace(input: Tensor) -> Tensor:
    """torch.trace."""
    if input.dim() != 2:
        raise RuntimeError(f"trace takes a matrix, not {input.dim()} dimensions")
    return diagonal(input).sum()


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """torch.tril, of a mask too."""
    return _keep(input, _distance(input) <= diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """torch.triu, of a mask too."""
    return _keep(input, _distance(input) >= diagonal)


def _keep(input: Tensor, inside: Tensor) -> Tensor:
    if input.dtype == torch.bool:
        return input & inside
    return torch.where(inside, input, torch.zeros_like(input))


def _distance(input: Tensor) -> Tensor:
    """How far each element is right of the diagonal."""
    if input.dim() < 2:
        raise RuntimeError(f"a triangle needs two dimensions or more, not {input.dim()}")
    rows = torch.arange(input.shape[-2], device=input.device)
    columns = torch.arange(input.shape[-1], device=input.device)
    return columns.unsqueeze(0) - rows.unsqueeze(1)


def _eye(size: int, like: Tensor) -> Tensor:
    at = torch.arange(size, device=like.device)
    return at.unsqueeze(1) == at.unsqueeze(0)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """torch.cross; without a dim the first of size 3, as there."""
    if dim is None:
        shape = broadcast_shapes(input.shape, other.shape)
        dim = next((place for place, size in enumerate(shape) if size == 3), None)
        if dim is None:
            raise RuntimeError(f"cross needs a dimension of size 3, and the shape is {tuple(shape)}")
    return linalg_cross(input, other, dim=dim)


def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """torch.linalg.cross."""
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"cross needs size 3 in dimension {dim}, not {input.shape[dim]} and {other.shape[dim]}"
        )
    a, b = input.unbind(dim), other.unbind(dim)
    parts = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    shape = broadcast_shapes(input.shape, other.shape)
    return torch.stack(parts, dim % len(shape) - len(shape))
