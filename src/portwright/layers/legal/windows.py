"""Sliding windows: taking them apart by slices, and summing them up again by a transposed convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import each

__all__ = ["Fold", "Unfold", "fold", "unfold", "unfold_dimension"]

Size = int | Sequence[int]


def unfold(
    input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """F.unfold, as a stack of strided slices, one for each place in the window."""
    kernel, dilations, paddings, strides = (
        each(size, 2) for size in (kernel_size, dilation, padding, stride)
    )
    if input.dim() not in (3, 4):
        raise RuntimeError(f"unfold takes an input of 3 or 4 dimensions, not {input.dim()}")
    padded = F.pad(input, (paddings[1], paddings[1], paddings[0], paddings[0]))
    counts = _counts(padded.shape[-2:], kernel, dilations, strides)
    slices = []
    for place in product(range(kernel[0]), range(kernel[1])):
        rows, columns = (
            slice(at * d, at * d + (count - 1) * s + 1, s)
            for at, d, s, count in zip(place, dilations, strides, counts, strict=True)
        )
        slices.append(padded[..., rows, columns])
    stacked = torch.stack(slices, -3)
    return stacked.reshape(*input.shape[:-3], input.shape[-3] * math.prod(kernel), math.prod(counts))


def fold(
    input: Tensor,
    output_size: Size,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
) -> Tensor:
    """F.fold, as a transposed convolution with one fixed place a channel."""
    output, kernel, dilations, paddings, strides = (
        each(size, 2) for size in (output_size, kernel_size, dilation, padding, stride)
    )
    if input.dim() not in (2, 3):
        raise RuntimeError(f"fold takes an input of 2 or 3 dimensions, not {input.dim()}")
    padded = [size + 2 * p for size, p in zip(output, paddings, strict=True)]
    counts = _counts(padded, kernel, dilations, strides)
    places = math.prod(kernel)
    if input.shape[-2] % places or input.shape[-1] != math.prod(counts):
        raise RuntimeError(
            f"fold to {tuple(output)} with kernel {tuple(kernel)} takes {places} x channels by {math.prod(counts)} windows, "
            f"not {input.shape[-2]} by {input.shape[-1]}"
        )
    windows = input.reshape(-1, places, *counts)
    place = torch.arange(places, device=input.device)
    picks = (place.unsqueeze(1) == place.unsqueeze(0)).to(input.dtype).reshape(places, 1, *kernel)
    left = [
        size - ((count - 1) * s + d * (k - 1) + 1)
        for size, count, s, d, k in zip(padded, counts, strides, dilations, kernel, strict=True)
    ]
    summed = F.conv_transpose2d(windows, picks, stride=strides, dilation=dilations)
    summed = F.pad(summed, (0, left[1], 0, left[0]))
    inside = summed[..., paddings[0] : paddings[0] + output[0], paddings[1] : paddings[1] + output[1]]
    return inside.reshape(*input.shape[:-2], input.shape[-2] // places, *output)


def unfold_dimension(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Tensor.unfold(dimension, size, step): windows along one dimension, their content last."""
    if input.dim() == 0:
        raise RuntimeError("unfold takes a tensor of at least one dimension")
    if not -input.dim() <= dimension < input.dim():
        raise IndexError(f"dimension {dimension} is out of range: the input has {input.dim()}")
    dim = dimension % input.dim()
    length = input.shape[dim]
    if size < 1 or size > length or step < 1:
        raise RuntimeError(f"windows of {size} by steps of {step} do not fit in a dimension of {length}")
    count = (length - size) // step + 1
    before = (slice(None),) * dim
    if size <= count:
        parts = [input[(*before, slice(at, at + (count - 1) * step + 1, step))] for at in range(size)]
        return torch.stack(parts, -1)
    windows = [input.narrow(dim, at * step, size) for at in range(count)]
    return torch.stack(windows, dim).movedim(dim + 1, -1)


def _counts(
    sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int], strides: Sequence[int]
) -> list[int]:
    counts = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, d, s in zip(sizes, kernel, dilations, strides, strict=True)
    ]
    if min(counts) < 1:
        raise RuntimeError(f"a window of {tuple(kernel)} does not fit in {tuple(sizes)}")
    return counts


Unfold = layer(nn.Unfold, unfold, "kernel_size", "dilation", "padding", "stride")
Fold = layer(nn.Fold, fold, "output_size", "kernel_size", "dilation", "padding", "stride")
