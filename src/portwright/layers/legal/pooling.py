"""Pooling in the forms that have a backward: adaptive maxima, windows that overhang, and unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import each

__all__ = [
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "MaxUnpool2d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_unpool2d",
]  # fmt: skip

Size = int | Sequence[int]
Target = int | Sequence[int | None] | None


def adaptive_max_pool1d(input: Tensor, output_size: Target, return_indices: bool = False) -> Tensor:
    """F.adaptive_max_pool1d, without indices."""
    return _adaptive_max(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Target, return_indices: bool = False) -> Tensor:
    """F.adaptive_max_pool2d, without indices."""
    return _adaptive_max(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Target, return_indices: bool = False) -> Tensor:
    """F.adaptive_max_pool3d, without indices."""
    return _adaptive_max(3, input, output_size, return_indices)


def _adaptive_max(num_dims: int, input: Tensor, output_size: Target, return_indices: bool) -> Tensor:
    """Pools ordinarily where windows tile the input, else one dimension after the other, the last one first, so that of equal
    maxima the same one gets the gradient as in torch."""
    if return_indices:
        raise NotImplementedError("the indices of an adaptive maximum have no equal form")
    sources = input.shape[-num_dims:]
    given = list(output_size) if isinstance(output_size, Sequence) else [output_size] * num_dims
    targets = [source if target is None else target for source, target in zip(sources, given, strict=True)]
    if min([*sources, *targets]) < 1:
        raise RuntimeError(f"adaptive pooling from {tuple(sources)} to {tuple(targets)} has nothing in it")
    if all(source % target == 0 for source, target in zip(sources, targets, strict=True)):
        kernel = [source // target for source, target in zip(sources, targets, strict=True)]
        pool: Any = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[num_dims]
        return pool(input, kernel)
    for dim in range(-1, -num_dims - 1, -1):
        source, target = sources[dim], targets[dim]
        if source != target:
            bins = [(at * source // target, -(-(at + 1) * source // target)) for at in range(target)]
            input = torch.stack([input.narrow(dim, a, b - a).max(dim).values for a, b in bins], dim)
    return input


def avg_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """F.avg_pool1d, with windows that overhang the end."""
    return _avg(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """F.avg_pool2d, with windows that overhang the end."""
    return _avg(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """F.avg_pool3d, with windows that overhang the end."""
    return _avg(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _avg(
    num_dims: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """Pools the input padded with zeros, and ones in the same places, which counts the elements of each window."""
    pool: Any = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[num_dims]
    kernel, paddings = each(kernel_size, num_dims), each(padding, num_dims)
    strides = each(kernel_size if stride is None or stride == [] else stride, num_dims)
    if any(p > k // 2 for p, k in zip(paddings, kernel, strict=True)):
        raise RuntimeError(f"a padding of {paddings} is more than half the window of {kernel}")
    before: list[int] = []
    over: list[int] = []
    for size, k, s, p in zip(input.shape[-num_dims:], kernel, strides, paddings, strict=True):
        left = (size + 2 * p - k) % s
        reach = s - left if ceil_mode and left else 0
        starts_inside = size + 2 * p - k - left + s < size + p
        before, over = [p, p, *before], [0, reach if starts_inside else 0, *over]
    padded = F.pad(F.pad(input, before), over)
    ones = torch.ones(
        *[1] * (input.dim() - num_dims), *input.shape[-num_dims:], dtype=input.dtype, device=input.device
    )
    counted = F.pad(F.pad(ones, before, value=1.0 if count_include_pad else 0.0), over)
    sums = pool(padded, kernel, strides) * math.prod(kernel)
    if divisor is not None:
        return sums / divisor
    return sums / (pool(counted, kernel, strides) * math.prod(kernel))


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """F.max_unpool2d, by a scatter into zeros."""
    kernel, paddings = each(kernel_size, 2), each(padding, 2)
    strides = each(kernel_size if stride is None else stride, 2)
    if output_size is None:
        target = [
            (size - 1) * s + k - 2 * p
            for size, k, s, p in zip(input.shape[-2:], kernel, strides, paddings, strict=True)
        ]
    else:
        target = list(output_size)[-2:]
    flat = torch.zeros(*input.shape[:-2], math.prod(target), dtype=input.dtype, device=input.device)
    placed = flat.scatter(-1, indices.flatten(-2), input.flatten(-2))
    return placed.reshape(*input.shape[:-2], *target)


AdaptiveMaxPool1d = layer(nn.AdaptiveMaxPool1d, adaptive_max_pool1d, "output_size", "return_indices")
AdaptiveMaxPool2d = layer(nn.AdaptiveMaxPool2d, adaptive_max_pool2d, "output_size", "return_indices")
AdaptiveMaxPool3d = layer(nn.AdaptiveMaxPool3d, adaptive_max_pool3d, "output_size", "return_indices")


class MaxUnpool2d(nn.MaxUnpool2d):
    """nn.MaxUnpool2d."""

    def forward(self, input: Tensor, indices: Tensor, output_size: list[int] | None = None) -> Tensor:
        options: Any = self
        return max_unpool2d(input, indices, options.kernel_size, options.stride, options.padding, output_size)
