"""Order statistics, cumulative extremes, sums of products and reductions under a mask."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.layers.legal.pointwise import logaddexp
from portwright.layers.legal.positions import Dims, broadcast_shapes, can_read, rising

__all__ = [
    "amax", "amin", "bincount", "bucketize", "count_nonzero", "cummax", "cummin", "einsum", "kthvalue",
    "logcumsumexp", "logsumexp", "masked_mean", "masked_sum", "median", "nanmean", "nansum", "quantile",
    "searchsorted", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """torch.median: the lower of two middle values; of values and indices with a dim; of whole numbers torch's own."""
    if not input.is_floating_point():
        return torch.median(input) if dim is None else torch.median(input, dim, keepdim)
    if dim is None:
        value = _kth(input.flatten(), (input.numel() + 1) // 2, 0)[0].detach()
        equal = (input == value).to(input.dtype)  # torch divides the gradient among equal values
        share = equal / equal.sum()
        return _or_nan(value + ((input - value) * share).sum(), input, None)
    values, indices = _kth(input, (input.shape[dim] + 1) // 2, dim, keepdim)
    return torch.return_types.median((_or_nan(values, input, dim, keepdim), indices))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """torch.kthvalue."""
    if not 1 <= k <= input.shape[dim]:
        raise RuntimeError(f"kthvalue takes k from 1 to {input.shape[dim]}, not {k}")
    return torch.return_types.kthvalue(_kth(input, k, dim, keepdim))


def _kth(input: Tensor, k: int, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest, as the last of the k smallest or of the remaining largest, whichever are fewer."""
    size = input.shape[dim]
    if size == 0:
        raise IndexError("an empty dimension has no k-th value")
    if k <= size - k + 1:
        found = input.topk(k, dim, largest=False)
        last = k - 1
    else:
        found = input.topk(size - k + 1, dim)
        last = size - k
    values, indices = found.values.narrow(dim, last, 1), found.indices.narrow(dim, last, 1)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _or_nan(result: Tensor, input: Tensor, dim: int | None, keepdim: bool = False) -> Tensor:
    """NaN where the input has one, as torch.median gives; topk treats NaN as the largest value."""
    unordered = (input != input).to(torch.float32)
    bad = unordered.sum() if dim is None else unordered.sum(dim, keepdim=keepdim)
    return torch.where(bad > 0, torch.full_like(result, math.nan), result)


def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """torch.quantile, for a q that is a number; torch's own for a tensor."""
    if isinstance(q, Tensor):
        return torch.quantile(input, q, dim, keepdim, interpolation=interpolation)
    if not 0.0 <= q <= 1.0:
        raise RuntimeError(f"quantile takes q from 0 to 1, not {q}")
    values = input.flatten() if dim is None else input
    along = 0 if dim is None else dim
    ordered = values.sort(along).values
    rank = q * (values.shape[along] - 1)
    lower = math.floor(rank)
    upper = math.ceil(rank)
    if interpolation not in ("linear", "lower", "higher", "nearest", "midpoint"):
        raise RuntimeError(f"quantile has no interpolation {interpolation!r}")
    at = {"lower": lower, "higher": upper, "nearest": round(rank)}
    if interpolation in at:
        result = ordered.narrow(along, at[interpolation], 1)
    else:
        share = 0.5 if interpolation == "midpoint" else rank - lower
        low, high = ordered.narrow(along, lower, 1), ordered.narrow(along, upper, 1)
        result = low if upper == lower else low + (high - low) * share
    result = _or_nan(result, values, along, keepdim=True)
    if dim is None:
        return result.reshape([1] * input.dim() if keepdim else [])
    return result if keepdim else result.squeeze(dim)


def cummax(input: Tensor, dim: int) -> Any:
    """torch.cummax, by maxima over distances that double."""
    return torch.return_types.cummax(_cumulative(input, dim, torch.ge))


def cummin(input: Tensor, dim: int) -> Any:
    """torch.cummin, by minima over distances that double."""
    return torch.return_types.cummin(_cumulative(input, dim, torch.le))


def _cumulative(input: Tensor, dim: int, wins: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The index of the extreme so far, then the value there, so that the gradient goes to one place. As in torch, of equal
    values the last one wins, and NaN stays."""
    dim = rising(dim, input.dim())[0]
    size = input.shape[dim]
    best = input.detach()
    shape = [size if at == dim else 1 for at in range(input.dim())]
    place = torch.arange(size, device=input.device).reshape(shape).expand(input.shape)
    distance = 1
    while distance < size:
        later, earlier = best.narrow(dim, distance, size - distance), best.narrow(dim, 0, size - distance)
        stays = wins(later, earlier) | (later != later)
        moved = torch.where(
            stays, place.narrow(dim, distance, size - distance), place.narrow(dim, 0, size - distance)
        )
        best = torch.cat([best.narrow(dim, 0, distance), torch.where(stays, later, earlier)], dim)
        place = torch.cat([place.narrow(dim, 0, distance), moved], dim)
        distance *= 2
    return input.gather(dim, place), place.clone()


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """torch.logcumsumexp, by sums over distances that double."""
    dim = rising(dim, input.dim())[0]
    size = input.shape[dim]
    result = input.clone()
    distance = 1
    while distance < size:
        later, earlier = result.narrow(dim, distance, size - distance), result.narrow(dim, 0, size - distance)
        result = torch.cat([result.narrow(dim, 0, distance), logaddexp(later, earlier)], dim)
        distance *= 2
    return result


def masked_sum(input: Tensor, mask: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The sum where the mask is true: input.masked_select(mask).sum() when no dim is given."""
    kept = torch.where(mask, input, torch.zeros_like(input))
    return kept.sum(rising(dim, kept.dim()), keepdim=keepdim)


def masked_mean(input: Tensor, mask: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """The mean where the mask is true: input.masked_select(mask).mean() when no dim is given; NaN where nothing is."""
    # a half type's sum overflows where torch's mean does not
    is_half = input.dtype in (torch.float16, torch.bfloat16)
    wide = input.float() if is_half else input
    whole = mask.to(wide.dtype).expand(broadcast_shapes(mask.shape, input.shape))
    count = whole.sum(rising(dim, whole.dim()), keepdim=keepdim)
    mean = masked_sum(wide, mask, dim, keepdim) / count
    return mean.to(input.dtype) if is_half else mean


def einsum(equation: str, left: Tensor, right: Tensor) -> Tensor:
    """torch.einsum of two batches of matrices, by matmul; a summed size of 1 stands for any, as it does in torch's."""
    first, second, result = re.split(",|->", equation.replace(" ", ""))
    left = left if first[-2] == result[-2] else left.transpose(-2, -1)
    right = right if second[-1] == result[-1] else right.transpose(-2, -1)
    if left.shape[-1] != right.shape[-2]:
        size = right.shape[-2] if left.shape[-1] == 1 else left.shape[-1]
        left, right = (
            left.expand(*left.shape[:-1], size),
            right.expand(*right.shape[:-2], size, right.shape[-1]),
        )
    return torch.matmul(left, right)


def nansum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """torch.nansum."""
    return masked_sum(input if dtype is None else input.to(dtype), input == input, dim, keepdim)


def nanmean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """torch.nanmean."""
    return masked_mean(input if dtype is None else input.to(dtype), input == input, dim, keepdim)


def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """torch.sum, over dimensions in rising order."""
    return torch.sum(input, rising(dim, input.dim()), keepdim=keepdim, dtype=dtype)


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """torch.amax, over dimensions in rising order."""
    return torch.amax(input, rising(dim, input.dim()), keepdim=keepdim)


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """torch.amin, over dimensions in rising order."""
    return torch.amin(input, rising(dim, input.dim()), keepdim=keepdim)


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """torch.logsumexp, over dimensions in rising order."""
    return torch.logsumexp(input, rising(dim, input.dim()), keepdim=keepdim)


def var(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    """torch.var, over dimensions in rising order."""
    return var_mean(input, dim, unbiased, keepdim, correction=correction)[0]


def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    """torch.std, over dimensions in rising order."""
    return std_mean(input, dim, unbiased, keepdim, correction=correction)[0]


def var_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Tensor, Tensor]:
    """torch.var_mean, as its two parts."""
    if isinstance(dim, bool):  # torch.var_mean(input, unbiased)
        dim, unbiased = None, dim
    one_less = correction if correction is not None else int(unbiased is None or unbiased)
    dims = rising(dim, input.dim())
    return input.var(dims, correction=one_less, keepdim=keepdim), input.mean(dims, keepdim=keepdim)


def std_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Tensor, Tensor]:
    """torch.std_mean, as its two parts."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    one_less = correction if correction is not None else int(unbiased is None or unbiased)
    dims = rising(dim, input.dim())
    return input.std(dims, correction=one_less, keepdim=keepdim), input.mean(dims, keepdim=keepdim)


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """torch.count_nonzero."""
    return (input != 0).to(torch.int64).sum(rising(dim, input.dim()))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """torch.bincount for values below minlength, which must be given, since the result's length may not depend on the data. A
    larger value is an error on a CPU, and not counted on the target."""
    if minlength < 1:
        raise ValueError("bincount has an equal form only with a minlength above all values")
    if can_read(input) and int(input.max()) >= minlength:
        raise UserError(
            f"bincount got the value {int(input.max())} with minlength={minlength}: its length would depend on the data.",
            "Give a minlength above all values.",
        )
    hits = input.unsqueeze(1) == torch.arange(minlength, device=input.device)
    if weights is None:
        return hits.to(torch.int64).sum(0)
    if not weights.is_floating_point():
        weights = weights.to(torch.float64)  # as torch does
    return (hits.to(weights.dtype) * weights.unsqueeze(1)).sum(0)


def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Tensor:
    """torch.searchsorted, by counting the boundaries below each value."""
    if side is not None:
        if side not in ("left", "right") or (right and side == "left"):
            raise RuntimeError(f"searchsorted cannot have side={side!r} with right={right}")
        right = side == "right"
    values = input if isinstance(input, Tensor) else sorted_sequence.new_full((), input)
    bounds = sorted_sequence if sorted_sequence.dim() == 1 else sorted_sequence.unsqueeze(-2)
    above = bounds > values.unsqueeze(-1) if right else bounds >= values.unsqueeze(-1)
    return (~above).to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(
    input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """torch.bucketize, by counting the boundaries below each value."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)
