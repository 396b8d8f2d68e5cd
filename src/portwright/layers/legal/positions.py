"""Picking fixed positions along a dimension by slices alone: the front end cannot differentiate an index in a later one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

MOST_PIECES = 8
"""More slices than this are taken apart along the dimension and put together again: the backward of many slices is slow."""
MOST_PARTS = 128
"""A dimension larger than this is gathered from instead, with an index as large as the result."""


Dims = int | Sequence[int] | None


class Piece(NamedTuple):
    """Positions start, start + step, ...: a slice, or with step 0 one position repeated."""

    start: int
    step: int
    num_taken: int


def take_positions(input: Tensor, dim: int, positions: Sequence[int]) -> Tensor:
    """input.index_select(dim, positions), for positions that are known beforehand; a copy always, as there."""
    dim = dim % input.dim()
    size = input.shape[dim]
    if not positions:
        return input.narrow(dim, 0, 0).clone()
    if list(positions) == list(range(size)):
        return input.clone()
    repeated = _repeat(positions, size)
    if repeated > 1:
        return repeat_each(input, dim, repeated)
    pieces = _pieces(positions)
    if len(pieces) <= MOST_PIECES:
        parts = [_cut(input, dim, piece) for piece in pieces]
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts, dim)
    if max(size, len(positions)) <= MOST_PARTS:
        parts = list(input.unbind(dim))
        return torch.stack([parts[at] for at in positions], dim)
    return _gather(input, dim, positions)


def repeat_each(input: Tensor, dim: int, times: int) -> Tensor:
    """input.repeat_interleave(times, dim), by a view and an expansion."""
    dim = dim % input.dim()
    shape = list(input.shape)
    spread = input.unsqueeze(dim + 1).expand(*shape[: dim + 1], times, *shape[dim + 1 :])
    return spread.reshape(*shape[:dim], shape[dim] * times, *shape[dim + 1 :]).contiguous()


def _repeat(positions: Sequence[int], size: int) -> int:
    """How often each position occurs if all occur equally often and in order, else 0."""
    times, rest = divmod(len(positions), size)
    if rest or times < 1:
        return 0
    return times if all(p == i // times for i, p in enumerate(positions)) else 0


def _pieces(positions: Sequence[int]) -> list[Piece]:
    """Cuts the positions greedily into long runs of one step; torch's slices cannot go backwards."""
    pieces: list[Piece] = []
    at = 0
    while at < len(positions):
        start = positions[at]
        if at + 1 == len(positions) or positions[at + 1] < start:
            pieces.append(Piece(start, 1, 1))
            at += 1
            continue
        step = positions[at + 1] - start
        end = at + 1
        while end + 1 < len(positions) and positions[end + 1] - positions[end] == step:
            end += 1
        pieces.append(Piece(start, step, end - at + 1))
        at = end + 1
    return pieces


def _cut(input: Tensor, dim: int, piece: Piece) -> Tensor:
    before = (slice(None),) * dim
    if piece.step == 0:
        one = input[(*before, slice(piece.start, piece.start + 1))]
        shape = list(input.shape)
        shape[dim] = piece.num_taken
        return one.expand(shape)
    stop = piece.start + (piece.num_taken - 1) * piece.step + 1
    return input[(*before, slice(piece.start, stop, piece.step))]


def _gather(input: Tensor, dim: int, positions: Sequence[int]) -> Tensor:
    """Gathers by an index built from aranges, since a tensor of host values is refused inside a step."""
    parts = []
    for piece in _pieces(positions):
        steps = torch.arange(piece.num_taken, device=input.device)
        parts.append(steps * piece.step + piece.start)
    return gather_along(input, dim, torch.cat(parts))


def gather_along(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """input.index_select(dim, index), by a gather, which is differentiable in every dimension."""
    dim = dim % input.dim()
    shape = list(input.shape)
    shape[dim] = index.shape[0]
    view = [1] * input.dim()
    view[dim] = index.shape[0]
    return input.gather(dim, index.reshape(view).expand(shape))


def flat_index(places: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Positions in several dimensions as one position in these dimensions flattened."""
    index = places[0]
    for place, size in zip(places[1:], sizes[1:], strict=False):
        index = index * size + place
    return index


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """torch.broadcast_shapes, typed."""
    return cast(tuple[int, ...], tuple(torch.broadcast_shapes(*shapes)))  # type: ignore[no-untyped-call]


def rising(dim: Dims, num_dims: int) -> list[int]:
    """The dimensions as torch counts them from the front, in rising order; none named means all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(num_dims))
    dims = [dim] if isinstance(dim, int) else list(dim)
    for one in dims:
        if not -max(num_dims, 1) <= one < max(num_dims, 1):
            raise IndexError(f"dimension {one} is out of range: the input has {num_dims}")
    return sorted(one % max(num_dims, 1) for one in dims)


def each(size: int | Sequence[int], num_dims: int) -> tuple[int, ...]:
    """A size for each dimension, where one may stand for all."""
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes * num_dims if len(sizes) == 1 else sizes


def can_read(tensor: Tensor) -> bool:
    """Whether the tensor's values can be read: it is plain, on the CPU, and nothing is tracing."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None
    )
