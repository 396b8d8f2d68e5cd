"""Batch norm followed by ReLU over [rows, channels]: one pass less forward and three less backward than the two apart.

Forward reads the input for its statistics and once more to norm, and keeps nothing but the input; backward finds out again
where ReLU let through. Statistics are merged from those of blocks (Chan et al.), in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 8192  # of a block
_MOST_BLOCKS = 1024  # that share the rows


@triton.jit
def _statistics_kernel(
    x_ptr,
    means_ptr,
    squares_ptr,
    num_rows,
    channels,
    rows_a_program,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    part = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    first = part.to(tl.int64) * rows_a_program
    last = tl.minimum(first + rows_a_program, num_rows)
    count = 0.0
    mean = tl.zeros([COLUMNS], tl.float32)
    squares = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        chosen = (rows < last)[:, None] & inside[None, :]
        x = tl.load(x_ptr + rows[:, None] * channels + columns[None, :], mask=chosen, other=0.0).to(
            tl.float32
        )
        new = tl.minimum(last - start, ROWS).to(tl.float32)
        block_mean = tl.sum(x, axis=0) / new
        away = tl.where(chosen, x - block_mean[None, :], 0.0)
        both = count + new
        delta = block_mean - mean
        mean += delta * (new / both)
        squares += tl.sum(away * away, axis=0) + delta * delta * (count * new / both)
        count = both
    tl.store(means_ptr + part * channels + columns, mean, mask=inside)
    tl.store(squares_ptr + part * channels + columns, squares, mask=inside)


@triton.jit
def _norm_relu_kernel(
    x_ptr, y_ptr, scale_ptr, mean_ptr, bias_ptr, num_rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    chosen = (rows < num_rows)[:, None] & inside[None, :]
    scale = tl.load(scale_ptr + columns, mask=inside, other=0.0)
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0)
    places = rows[:, None] * channels + columns[None, :]
    x = tl.load(x_ptr + places, mask=chosen, other=0.0).to(tl.float32)
    y = (x - mean[None, :]) * scale[None, :] + bias[None, :]
    y = tl.where(y < 0.0, 0.0, y)  # NaN stays
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=chosen)


@triton.jit
def _backward_sums_kernel(
    x_ptr,
    grad_ptr,
    scale_ptr,
    mean_ptr,
    bias_ptr,
    sums_ptr,
    products_ptr,
    num_rows,
    channels,
    rows_a_program,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    part = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    scale = tl.load(scale_ptr + columns, mask=inside, other=0.0)
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0)
    first = part.to(tl.int64) * rows_a_program
    last = tl.minimum(first + rows_a_program, num_rows)
    total = tl.zeros([COLUMNS], tl.float32)
    product = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        chosen = (rows < last)[:, None] & inside[None, :]
        places = rows[:, None] * channels + columns[None, :]
        away = tl.load(x_ptr + places, mask=chosen, other=0.0).to(tl.float32) - mean[None, :]
        gradient = tl.load(grad_ptr + places, mask=chosen, other=0.0).to(tl.float32)
        gradient = tl.where(away * scale[None, :] + bias[None, :] > 0.0, gradient, 0.0)
        total += tl.sum(gradient, axis=0)
        product += tl.sum(gradient * away, axis=0)
    tl.store(sums_ptr + part * channels + columns, total, mask=inside)
    tl.store(products_ptr + part * channels + columns, product, mask=inside)


@triton.jit
def _backward_kernel(
    x_ptr,
    grad_ptr,
    out_ptr,
    scale_ptr,
    mean_ptr,
    bias_ptr,
    slope_ptr,
    constant_ptr,
    num_rows,
    channels,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """scale * gradient + slope * (x - mean) + constant, the gradient being 0 where ReLU was."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    chosen = (rows < num_rows)[:, None] & inside[None, :]
    scale = tl.load(scale_ptr + columns, mask=inside, other=0.0)[None, :]
    mean = tl.load(mean_ptr + columns, mask=inside, other=0.0)[None, :]
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0)[None, :]
    slope = tl.load(slope_ptr + columns, mask=inside, other=0.0)[None, :]
    constant = tl.load(constant_ptr + columns, mask=inside, other=0.0)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    away = tl.load(x_ptr + places, mask=chosen, other=0.0).to(tl.float32) - mean
    gradient = tl.load(grad_ptr + places, mask=chosen, other=0.0).to(tl.float32)
    gradient = tl.where(away * scale + bias > 0.0, gradient, 0.0)
    out = gradient * scale + away * slope + constant
    tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), mask=chosen)


def _blocks(channels: int) -> tuple[int, int]:
    """Rows and columns of a block."""
    columns = min(triton.next_power_of_2(channels), 128)
    return max(_ELEMENTS // columns, 1), columns


def _parts(num_rows: int, rows: int) -> tuple[int, int]:
    """How many programs share the rows, and how many rows each takes."""
    num_blocks = triton.cdiv(num_rows, rows)
    each = triton.cdiv(num_blocks, _MOST_BLOCKS) * rows
    return triton.cdiv(num_rows, each), each


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the summed squares of the distance from it, of each channel."""
    num_rows, channels = x.shape
    rows, columns = _blocks(channels)
    parts, each = _parts(num_rows, rows)
    means = torch.empty(parts, channels, dtype=torch.float32, device=x.device)
    squares = torch.empty_like(means)
    _statistics_kernel[(parts, triton.cdiv(channels, columns))](
        x, means, squares, num_rows, channels, each, ROWS=rows, COLUMNS=columns, num_warps=8
    )
    counts = torch.full((parts, 1), float(each), device=x.device)
    counts[-1] = num_rows - (parts - 1) * each
    mean = (means * counts).sum(0) / num_rows
    return mean, squares.sum(0) + ((means - mean).square() * counts).sum(0)


class BatchNormReLU(torch.autograd.Function):
    """relu(batch_norm(x)) of [rows, channels] by the batch's own statistics, which come back too (mean, biased variance)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, channels = x.shape
        mean, squares = _statistics(x)
        variance = squares / num_rows
        inverse = torch.rsqrt(variance + eps)
        scale = weight.float() * inverse
        shift = bias.float()
        y = torch.empty_like(x)
        rows, columns = _blocks(channels)
        _norm_relu_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(channels, columns))](
            x, y, scale, mean, shift, num_rows, channels, ROWS=rows, COLUMNS=columns, num_warps=8
        )
        ctx.save_for_backward(x, scale, mean, shift, inverse)
        ctx.types = weight.dtype, bias.dtype
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, shift, inverse = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        num_rows, channels = x.shape
        rows, columns = _blocks(channels)
        parts, each = _parts(num_rows, rows)
        sums = torch.empty(2, parts, channels, dtype=torch.float32, device=x.device)
        in_columns = triton.cdiv(channels, columns)
        _backward_sums_kernel[(parts, in_columns)](
            x,
            gradient,
            scale,
            mean,
            shift,
            sums[0],
            sums[1],
            num_rows,
            channels,
            each,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
        total, product = sums.sum(1)
        slope = -scale * inverse.square() * product / num_rows
        constant = -scale * total / num_rows
        out = torch.empty_like(x)
        _backward_kernel[(triton.cdiv(num_rows, rows), in_columns)](
            x,
            gradient,
            out,
            scale,
            mean,
            shift,
            slope,
            constant,
            num_rows,
            channels,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
        weight_type, bias_type = ctx.types
        return out, (product * inverse).to(weight_type), total.to(bias_type), None
