"""Batch norm followed by ReLU over [rows, channels]: one pass less forward and three less backward than the two apart.

Forward reads the input for its statistics and once more to norm, and keeps nothing but the input; backward finds out again
where ReLU let through. Each program sums over a part of the rows, as distances from the part's first row so that nothing cancels;
a last program merges the parts (Chan et al.). All sums are float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 8192  # of a block that is read, computed and written
_SUMMED_ELEMENTS = 4096  # of a block that is added to sums in registers
_MOST_PARTS = 1024
_MERGED_COLUMNS = 8
_WARPS = 8


@triton.jit
def _statistics_kernel(
    x_ptr,
    means_ptr,
    squares_ptr,
    num_rows,
    channels,
    rows_a_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    part = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    first = part.to(tl.int64) * rows_a_part
    last = tl.minimum(first + rows_a_part, num_rows)
    origin = tl.load(x_ptr + first * channels + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        chosen = (rows < last)[:, None] & inside[None, :]
        x = tl.load(x_ptr + rows[:, None] * channels + columns[None, :], mask=chosen, other=0.0).to(
            tl.float32
        )
        away = tl.where(chosen, x - origin[None, :], 0.0)
        total += away
        squares += away * away
    count = (last - first).to(tl.float32)
    summed = tl.sum(total, axis=0)
    tl.store(means_ptr + part * channels + columns, origin + summed / count, mask=inside)
    about_mean = tl.sum(squares, axis=0) - summed * summed / count
    tl.store(squares_ptr + part * channels + columns, tl.maximum(about_mean, 0.0), mask=inside)


@triton.jit
def _merge_kernel(
    means_ptr,
    squares_ptr,
    weight_ptr,
    results_ptr,  # [4, channels]: mean, inverse deviation, scale, variance
    num_rows,
    channels,
    rows_a_part,
    parts,
    eps,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    part = tl.arange(0, PARTS)
    chosen = (part < parts)[:, None] & inside[None, :]
    places = part[:, None] * channels + columns[None, :]
    counts = tl.where(part < parts, tl.minimum(num_rows - part.to(tl.int64) * rows_a_part, rows_a_part), 0)
    counts = counts.to(tl.float32)[:, None]
    means = tl.load(means_ptr + places, mask=chosen, other=0.0)
    mean = tl.sum(means * counts, axis=0) / num_rows
    apart = means - mean[None, :]
    squares = tl.load(squares_ptr + places, mask=chosen, other=0.0)
    variance = tl.sum(squares + apart * apart * counts, axis=0) / num_rows
    inverse = 1.0 / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(results_ptr + columns, mean, mask=inside)
    tl.store(results_ptr + channels + columns, inverse, mask=inside)
    tl.store(results_ptr + 2 * channels + columns, weight * inverse, mask=inside)
    tl.store(results_ptr + 3 * channels + columns, variance, mask=inside)


@triton.jit
def _norm_relu_kernel(
    x_ptr, y_ptr, results_ptr, bias_ptr, num_rows, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    chosen = (rows < num_rows)[:, None] & inside[None, :]
    mean = tl.load(results_ptr + columns, mask=inside, other=0.0)[None, :]
    scale = tl.load(results_ptr + 2 * channels + columns, mask=inside, other=0.0)[None, :]
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    x = tl.load(x_ptr + places, mask=chosen, other=0.0).to(tl.float32)
    y = (x - mean) * scale + bias
    y = tl.where(y < 0.0, 0.0, y)  # NaN stays
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=chosen)


@triton.jit
def _backward_sums_kernel(
    x_ptr,
    grad_ptr,
    results_ptr,
    bias_ptr,
    sums_ptr,  # [2, parts, channels]: of gradients, and of gradients times distances from the mean
    num_rows,
    channels,
    grad_stride,
    rows_a_part,
    parts,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    part = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    mean = tl.load(results_ptr + columns, mask=inside, other=0.0)[None, :]
    scale = tl.load(results_ptr + 2 * channels + columns, mask=inside, other=0.0)[None, :]
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = part.to(tl.int64) * rows_a_part
    last = tl.minimum(first + rows_a_part, num_rows)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    product = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        chosen = (rows < last)[:, None] & inside[None, :]
        away = tl.load(x_ptr + rows[:, None] * channels + columns[None, :], mask=chosen, other=0.0)
        away = away.to(tl.float32) - mean
        gradient = tl.load(grad_ptr + rows[:, None] * grad_stride + columns[None, :], mask=chosen, other=0.0)
        gradient = tl.where(away * scale + bias > 0.0, gradient.to(tl.float32), 0.0)
        total += gradient
        product += gradient * away
    tl.store(sums_ptr + part * channels + columns, tl.sum(total, axis=0), mask=inside)
    tl.store(sums_ptr + (parts + part) * channels + columns, tl.sum(product, axis=0), mask=inside)


@triton.jit
def _backward_merge_kernel(
    sums_ptr,
    results_ptr,
    slopes_ptr,  # [4, channels]: slope, constant, gradient of the weight, gradient of the bias
    num_rows,
    channels,
    parts,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    part = tl.arange(0, PARTS)
    chosen = (part < parts)[:, None] & inside[None, :]
    places = part[:, None] * channels + columns[None, :]
    total = tl.sum(tl.load(sums_ptr + places, mask=chosen, other=0.0), axis=0)
    product = tl.sum(tl.load(sums_ptr + parts * channels + places, mask=chosen, other=0.0), axis=0)
    inverse = tl.load(results_ptr + channels + columns, mask=inside, other=0.0)
    scale = tl.load(results_ptr + 2 * channels + columns, mask=inside, other=0.0)
    tl.store(slopes_ptr + columns, -scale * inverse * inverse * product / num_rows, mask=inside)
    tl.store(slopes_ptr + channels + columns, -scale * total / num_rows, mask=inside)
    tl.store(slopes_ptr + 2 * channels + columns, product * inverse, mask=inside)
    tl.store(slopes_ptr + 3 * channels + columns, total, mask=inside)


@triton.jit
def _backward_kernel(
    x_ptr,
    grad_ptr,
    out_ptr,
    results_ptr,
    bias_ptr,
    slopes_ptr,
    num_rows,
    channels,
    grad_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """scale * gradient + slope * (x - mean) + constant, the gradient being 0 where ReLU was."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < channels
    chosen = (rows < num_rows)[:, None] & inside[None, :]
    mean = tl.load(results_ptr + columns, mask=inside, other=0.0)[None, :]
    scale = tl.load(results_ptr + 2 * channels + columns, mask=inside, other=0.0)[None, :]
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    slope = tl.load(slopes_ptr + columns, mask=inside, other=0.0)[None, :]
    constant = tl.load(slopes_ptr + channels + columns, mask=inside, other=0.0)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    away = tl.load(x_ptr + places, mask=chosen, other=0.0).to(tl.float32) - mean
    gradient = tl.load(grad_ptr + rows[:, None] * grad_stride + columns[None, :], mask=chosen, other=0.0)
    gradient = tl.where(away * scale + bias > 0.0, gradient.to(tl.float32), 0.0)
    out = gradient * scale + away * slope + constant
    tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), mask=chosen)


class _Shape:
    """How rows and channels are cut into blocks, and the rows into parts that are summed apart."""

    def __init__(self, num_rows: int, channels: int) -> None:
        self.columns = min(triton.next_power_of_2(channels), 128)
        self.rows = max(_ELEMENTS // self.columns, 1)
        self.summed_rows = max(_SUMMED_ELEMENTS // self.columns, 1)
        across = triton.cdiv(channels, self.columns)
        num_blocks = triton.cdiv(num_rows, self.summed_rows)
        self.rows_a_part = triton.cdiv(num_blocks, max(_MOST_PARTS // across, 64)) * self.summed_rows
        self.parts = triton.cdiv(num_rows, self.rows_a_part)
        self.grid = (triton.cdiv(num_rows, self.rows), across)
        self.sums_grid = (self.parts, across)
        self.merge_grid = (triton.cdiv(channels, _MERGED_COLUMNS),)
        self.merged_parts = triton.next_power_of_2(self.parts)


class BatchNormReLU(torch.autograd.Function):
    """relu(batch_norm(x)) of [rows, channels] by the batch's own statistics, which come back too (mean, biased variance)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, channels = x.shape
        shape = _Shape(num_rows, channels)
        partial = torch.empty(2, shape.parts, channels, dtype=torch.float32, device=x.device)
        results = torch.empty(4, channels, dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        summed = {"ROWS": shape.summed_rows, "COLUMNS": shape.columns, "num_warps": _WARPS}
        merged = {"PARTS": shape.merged_parts, "COLUMNS": _MERGED_COLUMNS, "num_warps": _WARPS}
        whole = {"ROWS": shape.rows, "COLUMNS": shape.columns, "num_warps": _WARPS}
        size = (num_rows, channels)
        _statistics_kernel[shape.sums_grid](x, partial[0], partial[1], *size, shape.rows_a_part, **summed)
        _merge_kernel[shape.merge_grid](
            partial[0], partial[1], weight, results, *size, shape.rows_a_part, shape.parts, eps, **merged
        )
        _norm_relu_kernel[shape.grid](x, y, results, bias, *size, **whole)
        ctx.save_for_backward(x, results, bias)
        ctx.weight_type = weight.dtype
        mean, variance = results[0], results[3]
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, results, bias = ctx.saved_tensors
        num_rows, channels = x.shape
        gradient = gradients[0]
        if gradient.stride(1) != 1:  # rows may lie apart, as those of a slice of channels do
            gradient = gradient.contiguous()
        shape = _Shape(num_rows, channels)
        sums = torch.empty(2, shape.parts, channels, dtype=torch.float32, device=x.device)
        slopes = torch.empty(4, channels, dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        summed = {"ROWS": shape.summed_rows, "COLUMNS": shape.columns, "num_warps": _WARPS}
        merged = {"PARTS": shape.merged_parts, "COLUMNS": _MERGED_COLUMNS, "num_warps": _WARPS}
        whole = {"ROWS": shape.rows, "COLUMNS": shape.columns, "num_warps": _WARPS}
        size, stride = (num_rows, channels), gradient.stride(0)
        _backward_sums_kernel[shape.sums_grid](
            x, gradient, results, bias, sums, *size, stride, shape.rows_a_part, shape.parts, **summed
        )
        _backward_merge_kernel[shape.merge_grid](sums, results, slopes, *size, shape.parts, **merged)
        _backward_kernel[shape.grid](x, gradient, out, results, bias, slopes, *size, stride, **whole)
        return out, slopes[2].to(ctx.weight_type), slopes[3].to(bias.dtype), None
