"""Resampling to another size: views and slices for the nearest neighbour, matrix products for the smooth modes.

The matrices are computed on the device from aranges: a step may not bring tensors from the host.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import take_positions

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "interpolate"]

_DIMS_OF = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """F.interpolate."""
    num_dims = input.dim() - 2
    _check(mode, num_dims, align_corners, antialias)
    sizes, factors = _target_sizes(input.shape[2:], size, scale_factor, recompute_scale_factor)
    if mode == "area":
        return F.interpolate(input, sizes, mode="area")
    result = input
    for place, (target, factor) in enumerate(zip(sizes, factors, strict=True)):
        dim = place + 2
        source = input.shape[dim]
        if mode.startswith("nearest"):
            result = take_positions(result, dim, _nearest(source, target, factor, mode == "nearest-exact"))
        elif target != source or (mode == "bicubic" and not antialias and factor not in (None, 1.0)):
            # Between equal sizes the other modes copy, whatever the factor.
            matrix = _matrix(source, target, factor, mode, bool(align_corners), antialias, input)
            result = _along(result, dim, matrix)
    return result.clone() if result is input else result


def _check(mode: str, num_dims: int, align_corners: bool | None, antialias: bool) -> None:
    if mode not in ("nearest", "nearest-exact", "area", *_DIMS_OF) or num_dims not in (1, 2, 3):
        raise NotImplementedError(f"mode {mode!r} is not defined for {num_dims} spatial dimensions")
    if _DIMS_OF.get(mode, num_dims) != num_dims:
        raise NotImplementedError(f"mode {mode!r} takes {_DIMS_OF[mode]} spatial dimensions, not {num_dims}")
    if align_corners is not None and mode not in _DIMS_OF:
        raise ValueError(f"align_corners means nothing to mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"antialias is for modes bilinear and bicubic, not {mode!r}")


def _target_sizes(
    sources: Sequence[int],
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    recompute: bool | None,
) -> tuple[list[int], list[float | None]]:
    """Each dimension's size, and the factor for computing positions; None: from the sizes."""
    if (size is None) == (scale_factor is None):
        raise ValueError("give either size or scale_factor")
    if scale_factor is None:
        assert size is not None
        sizes = [size] * len(sources) if isinstance(size, int) else [int(s) for s in size]
        if recompute:
            raise ValueError("recompute_scale_factor needs a scale_factor")
        factors: list[float | None] = [None] * len(sources)
    else:
        given = [scale_factor] * len(sources) if isinstance(scale_factor, int | float) else list(scale_factor)
        sizes = [math.floor(source * factor) for source, factor in zip(sources, given, strict=False)]
        factors = [None] * len(sources) if recompute else [float(factor) for factor in given]
    if len(sizes) != len(sources) or len(factors) != len(sources):
        raise ValueError(
            f"an input of {len(sources)} spatial dimensions needs as many sizes, not {len(sizes)}"
        )
    if min([*sizes, *sources]) < 1:
        raise RuntimeError(f"sizes must be positive: from {tuple(sources)} to {tuple(sizes)}")
    return sizes, factors


def _nearest(source: int, target: int, factor: float | None, exact: bool) -> list[int]:
    """The source position of each target position, computed in single precision as torch does."""
    scale = _single(1.0 / factor if factor else source / target)
    shift = 0.5 if exact else 0.0
    return [min(math.floor(_single((at + shift) * scale)), source - 1) for at in range(target)]


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _matrix(
    source: int,
    target: int,
    factor: float | None,
    mode: str,
    align_corners: bool,
    antialias: bool,
    like: Tensor,
) -> Tensor:
    """The (target, source) matrix whose rows hold the weight of each source position."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    to = torch.arange(target, device=like.device).to(dtype).unsqueeze(1)
    of = torch.arange(source, device=like.device).to(dtype).unsqueeze(0)
    if align_corners:
        scale = (source - 1) / (target - 1) if target > 1 else 0.0
    else:
        scale = 1.0 / factor if factor else source / target
    if antialias:
        return _antialiased(to, of, scale, source, mode)
    position = to * scale if align_corners else (to + 0.5) * scale - 0.5
    if mode == "bicubic":
        return _cubic_rows(position, of, source)
    position = position.clamp(0.0, source - 1.0)
    return (1.0 - (position - of).abs()).clamp(min=0.0)


def _cubic_rows(position: Tensor, of: Tensor, source: int) -> Tensor:
    """Weights of the four pixels around each position; those outside count for the edge."""
    base = torch.floor(position)
    rows = torch.zeros_like(position - of)
    for offset in (-1, 0, 1, 2):
        at = base + float(offset)
        weight = _cubic((position - at).abs(), -0.75)
        rows = rows + weight * (at.clamp(0.0, source - 1.0) == of).to(rows.dtype)
    return rows


def _cubic(distance: Tensor, a: float) -> Tensor:
    """The cubic convolution kernel at a distance of 0 to 2, zero beyond."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = ((a * distance - 5.0 * a) * distance + 8.0 * a) * distance - 4.0 * a
    return torch.where(distance <= 1.0, near, torch.where(distance < 2.0, far, torch.zeros_like(far)))


def _antialiased(to: Tensor, of: Tensor, scale: float, source: int, mode: str) -> Tensor:
    """Rows with the kernel widened to the distance of samples when shrinking, each row normalised."""
    half = 1.0 if mode == "bilinear" else 2.0
    width = max(scale, 1.0)
    support = half * width
    center = (to + 0.5) * scale
    first = torch.floor(center - support + 0.5).clamp(min=0.0)
    last = torch.floor(center + support + 0.5).clamp(max=float(source))
    distance = ((of - center + 0.5) / width).abs()
    weight = (1.0 - distance).clamp(min=0.0) if mode == "bilinear" else _cubic(distance, -0.5)
    weight = weight * ((of >= first) & (of < last)).to(weight.dtype)
    return weight / weight.sum(1, keepdim=True)


def _along(input: Tensor, dim: int, matrix: Tensor) -> Tensor:
    matrix = matrix.to(input.dtype)
    if dim == input.dim() - 1:
        return torch.matmul(input, matrix.t())
    if dim == input.dim() - 2:
        return torch.matmul(matrix, input)
    return torch.matmul(input.transpose(dim, -1), matrix.t()).transpose(dim, -1)


_OPTIONS = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
Upsample = layer(nn.Upsample, interpolate, *_OPTIONS)
UpsamplingNearest2d = layer(nn.UpsamplingNearest2d, interpolate, *_OPTIONS)
UpsamplingBilinear2d = layer(nn.UpsamplingBilinear2d, interpolate, *_OPTIONS)
