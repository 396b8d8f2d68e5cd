"""Convolutions of one dimension and of several groups, as dense convolutions of two or three dimensions.

The front end has no backward of 1-D convolutions and no groups at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.padding import pad
from portwright.layers.legal.positions import each

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]  # fmt: skip

Size = int | Sequence[int]
Padding = int | str | Sequence[int]

MOST_CHUNKS = 32
"""More groups than this become one dense convolution: that many separate ones would swell the graph."""
MOST_TAPS = 64
"""Larger depthwise kernels than this become one dense convolution, for the same reason."""


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """F.conv1d, as a 2-D convolution of height 1."""
    flat_padding = padding if isinstance(padding, str) else (0, *each(padding, 1))
    result = conv2d(
        input.unsqueeze(-2), weight.unsqueeze(-2), bias,
        (1, *each(stride, 1)), flat_padding, (1, *each(dilation, 1)), groups,
    )  # fmt: skip
    return result.squeeze(-2)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """F.conv2d, with groups taken apart."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """F.conv3d, with groups taken apart."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """F.conv_transpose1d, as a 2-D transposed convolution of height 1."""
    result = conv_transpose2d(
        input.unsqueeze(-2), weight.unsqueeze(-2), bias,
        (1, *each(stride, 1)), (0, *each(padding, 1)), (0, *each(output_padding, 1)), groups, (1, *each(dilation, 1)),
    )  # fmt: skip
    return result.squeeze(-2)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """F.conv_transpose2d, with groups taken apart."""
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """F.conv_transpose3d, with groups taken apart."""
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _conv(
    num_dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int,
) -> Tensor:
    dense: Any = F.conv2d if num_dims == 2 else F.conv3d
    channels = -num_dims - 1
    if groups == 1 or _is_malformed(input, weight, groups, channels):
        return dense(input, weight, bias, stride, padding, dilation, groups)
    taps = math.prod(weight.shape[2:])
    if weight.shape[1] == 1 and taps <= MOST_TAPS:
        return _depthwise(num_dims, input, weight, bias, stride, padding, dilation)
    if groups > MOST_CHUNKS:
        return dense(input, _block_diagonal(weight, groups), bias, stride, padding, dilation)
    parts = zip(
        input.chunk(groups, channels),
        weight.chunk(groups),
        [None] * groups if bias is None else bias.chunk(groups),
        strict=True,
    )
    return torch.cat([dense(x, w, b, stride, padding, dilation) for x, w, b in parts], channels)


def _is_malformed(input: Tensor, weight: Tensor, groups: int, channels: int) -> bool:
    """Whether a call is wrong, so that torch must raise its own error."""
    if groups < 1 or input.dim() < -channels or weight.dim() != 1 - channels:
        return True
    return input.shape[channels] != weight.shape[1] * groups or weight.shape[0] % groups != 0


def _depthwise(
    num_dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Padding,
    dilation: Size,
) -> Tensor:
    """Convolves each channel by itself: a sum over the kernel's places of shifted views times one number a channel."""
    strides, dilations = each(stride, num_dims), each(dilation, num_dims)
    kernel = tuple(weight.shape[2:])
    padded = F.pad(input, _pad_amounts(padding, kernel, dilations))
    num_channels = input.shape[-num_dims - 1]
    multiplier = weight.shape[0] // num_channels
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, d, s in zip(padded.shape[-num_dims:], kernel, dilations, strides, strict=True)
    ]
    if min(sizes) < 1:
        raise RuntimeError(
            f"a kernel of {kernel} does not fit in an input of {tuple(padded.shape[-num_dims:])}"
        )
    per_channel = weight.reshape(num_channels, multiplier, *kernel)

    def shifted_product(tap: tuple[int, ...]) -> Tensor:
        at: tuple[Any, ...] = (..., *tap)
        seen: tuple[Any, ...] = (
            ...,
            *(
                slice(offset * d, offset * d + (size - 1) * s + 1, s)
                for offset, size, s, d in zip(tap, sizes, strides, dilations, strict=True)
            ),
        )
        factor = per_channel[at].reshape(num_channels, multiplier, *[1] * num_dims)
        return padded[seen].unsqueeze(-num_dims - 1) * factor

    result = reduce(add, map(shifted_product, product(*map(range, kernel)))).flatten(
        -num_dims - 2, -num_dims - 1
    )
    return result if bias is None else result + bias.reshape(-1, *[1] * num_dims)


def _pad_amounts(padding: Padding, kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The amounts for F.pad: last dimension first, before and after."""
    amounts: list[int] = []
    for place in reversed(range(len(kernel))):
        if padding == "valid":
            amounts += [0, 0]
        elif padding == "same":
            total = dilations[place] * (kernel[place] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            amount = each(padding, len(kernel))[place]  # type: ignore[arg-type]
            amounts += [amount, amount]
    return amounts


def _block_diagonal(weight: Tensor, groups: int) -> Tensor:
    """The dense weight (first, second, ...) of a grouped one (first, second / groups, ...), with zeros between groups."""
    first, second = weight.shape[0], weight.shape[1]
    kernel = tuple(weight.shape[2:])
    ones = [1] * len(kernel)
    group = torch.arange(groups, device=weight.device)
    same = (group.unsqueeze(1) == group.unsqueeze(0)).to(weight.dtype).reshape(groups, 1, groups, 1, *ones)
    spread = weight.reshape(groups, first // groups, 1, second, *kernel) * same
    return spread.reshape(first, groups * second, *kernel)


def _conv_transpose(
    num_dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Tensor:
    dense: Any = F.conv_transpose2d if num_dims == 2 else F.conv_transpose3d
    channels = -num_dims - 1
    if groups == 1 or input.shape[channels] != weight.shape[0] or weight.shape[0] % groups:
        return dense(input, weight, bias, stride, padding, output_padding, groups, dilation)
    if groups > MOST_CHUNKS:
        spread = _block_diagonal(weight, groups)
        return dense(input, spread, bias, stride, padding, output_padding, 1, dilation)
    parts = zip(
        input.chunk(groups, channels),
        weight.chunk(groups),
        [None] * groups if bias is None else bias.chunk(groups),
        strict=True,
    )
    return torch.cat(
        [dense(x, w, b, stride, padding, output_padding, 1, dilation) for x, w, b in parts], channels
    )


class _PaddedConv:
    """What the three layers do in place of torch's convolution."""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv, padding = (conv1d, conv2d, conv3d)[len(self.kernel_size) - 1], self.padding
        if self.padding_mode != "zeros":
            input = pad(input, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = 0
        return conv(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_PaddedConv, nn.Conv1d):
    """nn.Conv1d, as a 2-D convolution of height 1."""


class Conv2d(_PaddedConv, nn.Conv2d):
    """nn.Conv2d, with groups taken apart and any padding mode."""


class Conv3d(_PaddedConv, nn.Conv3d):
    """nn.Conv3d, with groups taken apart and any padding mode."""


class _Transposed:
    """What the three layers do in place of torch's transposed convolution."""

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        num_dims = len(self.kernel_size)
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, num_dims, self.dilation
        )
        return (conv_transpose1d, conv_transpose2d, conv_transpose3d)[num_dims - 1](
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """nn.ConvTranspose1d, as a 2-D one of height 1."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """nn.ConvTranspose2d, with groups taken apart."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """nn.ConvTranspose3d, with groups taken apart."""
