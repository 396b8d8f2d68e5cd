"""Moving and picking elements: flips, rolls, one-hot rows, and integer indices in a later dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import can_read, gather_along, rising, take_positions

__all__ = [
    "ChannelShuffle", "channel_shuffle", "flip", "fliplr", "flipud", "getitem", "index_fill", "index_select",
    "one_hot", "roll", "rot90",
]  # fmt: skip

Dims = int | Sequence[int]


def flip(input: Tensor, dims: Dims, *more: int) -> Tensor:
    """torch.flip."""
    flipped = input
    for dim in _each(dims, more):
        flipped = take_positions(
            flipped, rising(dim, flipped.dim())[0], list(range(flipped.shape[dim]))[::-1]
        )
    return flipped.clone() if flipped is input else flipped


def fliplr(input: Tensor) -> Tensor:
    """torch.fliplr."""
    if input.dim() < 2:
        raise RuntimeError(f"fliplr needs two dimensions or more, not {input.dim()}")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """torch.flipud."""
    if input.dim() < 1:
        raise RuntimeError("flipud needs one dimension or more, not 0")
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """torch.rot90."""
    first, second = (rising(dim, input.dim())[0] for dim in dims)
    if first == second:
        raise RuntimeError(f"rot90 needs two different dimensions, not {tuple(dims)}")
    turns = k % 4
    if turns == 2:
        return flip(input, (first, second))
    if turns:
        turned = input.transpose(first, second)
        return flip(turned, first if turns == 1 else second)
    return input.clone()


def roll(input: Tensor, shifts: Dims, dims: Dims | None = None, *more: int) -> Tensor:
    """torch.roll."""
    amounts = _each(shifts, ())
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        if len(amounts) != 1:
            raise RuntimeError(f"roll without dims takes one shift, not {len(amounts)}")
        return roll(input.flatten(), amounts[0], 0).reshape(input.shape)
    places = _each(dims, more)
    if len(places) != len(amounts):
        raise RuntimeError(f"roll needs a shift for each dimension: {len(amounts)} for {len(places)}")
    rolled = input
    for amount, dim in zip(amounts, places, strict=True):
        size = rolled.shape[rising(dim, rolled.dim())[0]]
        if size and amount % size:
            rolled = take_positions(rolled, dim, [(at - amount) % size for at in range(size)])
    return rolled.clone() if rolled is input else rolled


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """F.one_hot, by comparison with an arange. The number of classes must be given, since nothing can be read back while a
    step is traced; for the same reason a class outside it is an error on a CPU, and a row of zeros on the target."""
    if num_classes < 1:
        raise UserError(
            f"one_hot with num_classes={num_classes} reads the largest class from the data, which the target cannot do.",
            "Give the number of classes.",
        )
    if tensor.dtype != torch.int64:
        raise RuntimeError(f"one_hot takes an index tensor of type int64, not {tensor.dtype}")
    if can_read(tensor) and (int(tensor.min()) < 0 or int(tensor.max()) >= num_classes):
        raise RuntimeError(f"one_hot got classes outside 0 to {num_classes - 1}")
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """torch.index_select, by a gather."""
    return gather_along(input, rising(dim, input.dim())[0], index.reshape(-1).to(torch.int64))


def getitem(input: Tensor, key: Any) -> Tensor:
    """input[key], for a key with one index tensor or list among slices, numbers, None and an ellipsis."""
    basic, dim, index = split_key(input, key)
    viewed = input[basic]
    size = viewed.shape[dim]
    if not isinstance(index, Tensor):
        if any(not -size <= at < size for at in index):
            raise IndexError(f"an index of {index} is out of range for a dimension of {size}")
        return take_positions(viewed, dim, [at % size for at in index])
    wrapped = torch.where(index < 0, index + size, index)
    picked = gather_along(viewed, dim, wrapped.reshape(-1).to(torch.int64))
    return picked.reshape(*viewed.shape[:dim], *index.shape, *viewed.shape[dim + 1 :])


def split_key(input: Tensor, key: Any) -> tuple[tuple[Any, ...], int, Tensor | list[int]]:
    """A key split into the part that gives a view, and a dimension of that view with an index into it; ValueError for a key
    that `getitem` does not take."""
    parts = list(key) if isinstance(key, tuple) else [key]
    basic: list[Any] = []
    found: list[tuple[int, Any]] = []
    dim = 0  # in the view
    num_named = sum(part is not None and part is not Ellipsis for part in parts)
    for part in parts:
        if isinstance(part, Tensor | list):
            found.append((dim, part))
            basic.append(slice(None))
            dim += 1
        elif isinstance(part, slice) or part is None:
            basic.append(part)
            dim += 1
        elif part is Ellipsis:
            basic.append(part)
            dim += input.dim() - num_named
        elif type(part) is int:
            basic.append(part)
        else:
            raise ValueError("not a key of slices, numbers and one index")
    if len(found) != 1 or num_named > input.dim():
        raise ValueError("not one index")
    place, index = found[0]
    is_integers = (
        index.dtype in (torch.int64, torch.int32)
        if isinstance(index, Tensor)
        else bool(index) and all(type(at) is int for at in index)
    )
    if not is_integers:
        raise ValueError("not an index of integers")
    return tuple(basic), place, index


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """F.channel_shuffle."""
    if groups < 1 or input.dim() < 3 or input.shape[1] % groups:
        raise RuntimeError(
            f"{groups} groups do not divide the channels of an input of shape {tuple(input.shape)}"
        )
    split = input.reshape(input.shape[0], groups, input.shape[1] // groups, *input.shape[2:])
    return split.transpose(1, 2).clone(memory_format=torch.contiguous_format).reshape(input.shape)


def masked_fill_at(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """input with value where the mask is true: what `input[mask] = value` does for a value of one element."""
    filler = value.to(input.dtype) if isinstance(value, Tensor) else input.new_full((), value)
    while mask.dim() < input.dim():
        mask = mask.unsqueeze(-1)
    return torch.where(mask, filler.reshape(()), input)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """torch.index_fill, by comparison with an arange."""
    dim = rising(dim, input.dim())[0]
    positions = torch.arange(input.shape[dim], device=input.device)
    wrapped = torch.where(index < 0, index + input.shape[dim], index).reshape(-1, 1)
    chosen = (wrapped == positions).any(0)
    return masked_fill_at(input, chosen.reshape([-1 if at == dim else 1 for at in range(input.dim())]), value)


def _each(dims: Dims, more: Sequence[int]) -> list[int]:
    return [dims, *more] if isinstance(dims, int) else list(dims)


ChannelShuffle = layer(nn.ChannelShuffle, channel_shuffle, "groups")
