"""Sampling at positions that the model computes, by gathers of the neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add, and_, mul

import torch
from torch import Tensor

from portwright.layers.legal.positions import flat_index

__all__ = ["affine_grid", "grid_sample"]


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """F.grid_sample in modes bilinear and nearest, of images and volumes."""
    num_dims = input.dim() - 2
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            f"grid_sample has an equal form for bilinear and nearest, not {mode!r} with {padding_mode!r}"
        )
    if num_dims not in (2, 3) or grid.dim() != input.dim() or grid.shape[-1] != num_dims:
        raise RuntimeError(f"grid_sample of {tuple(input.shape)} cannot take a grid of {tuple(grid.shape)}")
    sizes = input.shape[2:]
    corners = bool(align_corners)
    # The grid has the last dimension first.
    positions = [
        _place(grid[..., num_dims - 1 - at], size, padding_mode, corners) for at, size in enumerate(sizes)
    ]
    if mode == "nearest":
        return _pick(input, [torch.round(position) for position in positions], sizes, padding_mode)
    lows = [torch.floor(position).detach() for position in positions]

    def weighted_pixels(corner: Sequence[int]) -> Tensor:
        at = [low + float(side) for low, side in zip(lows, corner, strict=True)]
        shares = [
            position - low if side else low + 1.0 - position
            for position, low, side in zip(positions, lows, corner, strict=True)
        ]
        return _pick(input, at, sizes, padding_mode) * reduce(mul, shares).unsqueeze(1)

    return reduce(add, map(weighted_pixels, product((0, 1), repeat=num_dims))).to(input.dtype)


def _place(coordinate: Tensor, size: int, padding_mode: str, corners: bool) -> Tensor:
    """Maps [-1, 1] to a position among the pixels, moved inside as the mode says."""
    if corners:
        position = (coordinate + 1.0) * ((size - 1) / 2.0)
    else:
        position = (coordinate + 1.0) * (size / 2.0) - 0.5
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        position = _reflect(position, low, high - low)
    # Torch stops the gradient at the border itself, where clamp would let it pass.
    inside = (position > 0) & (position < size - 1.0)
    return torch.where(inside, position, position.detach().clamp(0.0, size - 1.0))


def _reflect(position: Tensor, low: float, span: float) -> Tensor:
    if span == 0:
        return torch.zeros_like(position)
    away = position - low
    away = torch.where(away < 0, -away, away)
    turns = torch.floor(away / span).detach()
    rest = away - turns * span
    odd = turns - 2.0 * torch.floor(turns / 2.0)
    return torch.where(odd > 0, span - rest, rest) + low


def _pick(input: Tensor, at: Sequence[Tensor], sizes: Sequence[int], padding_mode: str) -> Tensor:
    """The pixels at whole positions, zero where one is outside."""
    places = [(position.detach(), size) for position, size in zip(at, sizes, strict=True)]
    index = flat_index([place.clamp(0.0, size - 1.0).to(torch.int64) for place, size in places], sizes)
    inside = reduce(and_, ((place >= 0) & (place <= size - 1.0) for place, size in places))
    flat = index.flatten(1).unsqueeze(1).expand(-1, input.shape[1], -1)
    found = input.flatten(2).gather(2, flat).reshape(*input.shape[:2], *index.shape[1:])
    if padding_mode == "zeros":
        return torch.where(inside.unsqueeze(1), found, torch.zeros_like(found))
    return found


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """F.affine_grid, by broadcast sums: a matrix product would round positions to half precision."""
    num_dims = len(size) - 2
    if num_dims not in (2, 3) or theta.shape[-2:] != (num_dims, num_dims + 1) or min(size) < 1:
        raise ValueError(f"affine_grid cannot take theta of {tuple(theta.shape)} to a size of {tuple(size)}")
    shape = list(size[2:])
    result = theta[:, :, num_dims].reshape(-1, *[1] * num_dims, num_dims)
    for at, length in enumerate(shape):
        line = torch.arange(length, device=theta.device).to(theta.dtype)
        if align_corners:
            line = line * (2.0 / (length - 1)) - 1.0 if length > 1 else line * 0.0
        else:
            line = (line * 2.0 + 1.0) / length - 1.0
        line = line.reshape([-1 if place == at else 1 for place in range(num_dims)])
        result = result + line.unsqueeze(-1) * theta[:, :, num_dims - 1 - at].reshape(
            -1, *[1] * num_dims, num_dims
        )
    return result
