"""Elementwise functions whose forward or backward the front end lacks, written with ones that it has."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import rising

__all__ = [
    "CELU", "SELU", "Hardshrink", "Hardsigmoid", "PReLU", "Softshrink", "asinh", "atanh", "celu", "dist",
    "erfc", "exp2", "fmax", "fmin", "frac", "hardshrink", "hardsigmoid", "hypot", "lerp", "linspace",
    "logaddexp", "logit", "mv", "nan_to_num", "norm", "normalize", "pairwise_distance", "prelu", "selu",
    "softshrink", "trunc", "vdot", "vector_norm",
]  # fmt: skip

_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """F.prelu."""
    if weight.numel() != 1:
        if input.dim() < 2 or input.shape[1] != weight.numel():
            raise RuntimeError(
                f"prelu has {weight.numel()} weights for an input of shape {tuple(input.shape)}"
            )
        weight = weight.reshape(-1, *[1] * (input.dim() - 2))
    else:
        weight = weight.reshape(())
    return torch.where(input > 0, input, (weight * input).to(input.dtype))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """F.selu."""
    return _finish(input, _elu(input, _SELU_ALPHA, 1.0) * _SELU_SCALE, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """F.celu."""
    if alpha == 0:
        raise RuntimeError("celu takes an alpha other than 0")
    return _finish(input, _elu(input, alpha, 1.0 / alpha), inplace)


def _elu(input: Tensor, alpha: float, slope: float) -> Tensor:
    """ELU; its exponential gets no large argument, so that the branch not taken cannot make the gradient NaN."""
    below = (input.clamp(max=0.0) * slope).expm1().to(input.dtype) * alpha
    return torch.where(input > 0, input, below)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """F.hardsigmoid; its gradient is zero at both ends, as torch's."""
    inside = (input > -3) & (input < 3)
    ends = (input >= 3).to(input.dtype)
    return _finish(input, torch.where(inside, input / 6.0 + 0.5, ends), inplace)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """F.softshrink."""
    if lambd < 0:
        raise RuntimeError(f"softshrink takes a lambda of at least 0, not {lambd}")
    smaller = torch.where(input > lambd, input - lambd, torch.zeros_like(input))
    return torch.where(input < -lambd, input + lambd, smaller)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """F.hardshrink."""
    return torch.where((input >= -lambd) & (input <= lambd), torch.zeros_like(input), input)


def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """torch.lerp."""
    return input + (end - input) * weight


def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """torch.nan_to_num."""
    if not input.is_floating_point():
        return torch.nan_to_num(input, nan, posinf, neginf)
    limits = torch.finfo(input.dtype)

    def put(where: Tensor, value: float, into: Tensor) -> Tensor:
        return torch.where(where, torch.full_like(into, value), into)

    result = put(input != input, 0.0 if nan is None else nan, input)
    result = put(input == math.inf, limits.max if posinf is None else posinf, result)
    return put(input == -math.inf, limits.min if neginf is None else neginf, result)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """torch.logaddexp."""
    larger, smaller = torch.maximum(input, other), torch.minimum(input, other)
    same = input == other  # equal infinities too, whose difference would be NaN
    gap = torch.where(same, torch.zeros_like(larger), smaller - larger)
    return larger + torch.log1p(torch.exp(gap))


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """torch.fmax: the one that is a number where the other is not."""
    return torch.where((input >= other) | (other != other), input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """torch.fmin: the one that is a number where the other is not."""
    return torch.where((input <= other) | (other != other), input, other)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """F.pairwise_distance, in any norm."""
    if p == 2.0:
        return F.pairwise_distance(x1, x2, p, eps, keepdim)
    return norm(x1 - x2 + eps, p, -1, keepdim)


def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """torch.dist."""
    return norm(input - other, p)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """torch.hypot; at the origin its gradient is not defined, here as there."""
    # divided by this: squares of large numbers overflow, those of small ones vanish
    size = torch.maximum(input.abs(), other.abs()).detach()
    scale = torch.where((size == 0) | (size == math.inf), torch.ones_like(size), size)
    return ((input / scale).square() + (other / scale).square()).sqrt() * scale


def exp2(input: Tensor) -> Tensor:
    """torch.exp2."""
    return torch.exp(input * math.log(2.0))


def asinh(input: Tensor) -> Tensor:
    """torch.asinh, by log1p, which keeps small values exact; a large one adds the logarithm of what it is times 2**40.

    Where the square overflows, torch's gradient is zero.
    """
    size = input.abs()
    small = size.clamp(max=2.0**40)
    square = small * small
    with_slope = torch.where(size * size == math.inf, size.detach(), size)
    beyond = torch.log((with_slope / 2.0**40).clamp(min=1.0))
    root = torch.log1p(small + square / (1.0 + torch.sqrt(square + 1.0)))
    return input.sign() * (root + beyond) + _keep_slope(input)


def _keep_slope(input: Tensor) -> Tensor:
    """Zero, with the slope 1 at the origin that sign() times |x| lacks there."""
    return torch.where(input == 0, input, torch.zeros_like(input))


def atanh(input: Tensor) -> Tensor:
    """torch.atanh."""
    return 0.5 * (torch.log1p(input) - torch.log1p(-input))


def erfc(input: Tensor) -> Tensor:
    """torch.erfc; beyond about 5 it is zero in single precision, where torch still has a few digits."""
    return 1.0 - torch.erf(input)


def trunc(input: Tensor) -> Tensor:
    """torch.trunc."""
    return torch.where(input < 0, torch.ceil(input), torch.floor(input))


def frac(input: Tensor) -> Tensor:
    """torch.frac."""
    return input - trunc(input)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """torch.logit."""
    if eps is not None and eps >= 0:
        input = input.clamp(eps, 1.0 - eps)
    return torch.log(input) - torch.log1p(-input)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """torch.mv."""
    if input.dim() != 2 or vec.dim() != 1:
        raise RuntimeError(f"mv takes a matrix and a vector, not {input.dim()} and {vec.dim()} dimensions")
    return torch.matmul(input, vec.unsqueeze(1)).squeeze(1)


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """torch.vdot of real vectors."""
    if input.dim() != 1 or other.dim() != 1:
        raise RuntimeError(f"vdot takes two vectors, not {input.dim()} and {other.dim()} dimensions")
    return (input * other).sum()


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """torch.linspace between two numbers, by an arange."""
    made = torch.get_default_dtype() if dtype is None else dtype
    at = torch.arange(steps, device=device).to(made)
    if steps <= 1:
        values = at + start
    else:
        step = (end - start) / (steps - 1)
        values = torch.where(at < steps // 2, at * step + start, end - (steps - 1 - at) * step)
    return values.requires_grad_(requires_grad) if requires_grad else values


def _finish(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input.copy_(result) if inplace else result


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.linalg.vector_norm, of an order above 0 or infinity."""
    return norm(x, float(ord), dim, keepdim, dtype)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """F.normalize, in any norm."""
    if p == 2.0:
        return F.normalize(input, p, dim, eps)
    return input / norm(input, p, dim, keepdim=True).clamp(min=eps).expand_as(input)


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.norm of a vector, p a number above 0 or infinity; torch's own for another p."""
    values = input if dtype is None else input.to(dtype)
    if p in ("fro", None, 2, 2.0):
        return cast(Tensor, torch.norm(values, 2.0, dim, keepdim))
    if isinstance(p, str) or (p is not None and p <= 0):
        return cast(Tensor, torch.norm(values, p, dim, keepdim))
    assert p is not None
    size = values.abs()
    dims = rising(dim, input.dim())
    if p == math.inf:
        return size.amax(dims, keepdim=keepdim)
    if p == 1:
        return size.sum(dims, keepdim=keepdim)
    total = size.pow(p).sum(dims, keepdim=keepdim)
    is_zero = total == 0  # there the root has no gradient, and torch's is zero
    return torch.where(is_zero, total, total.masked_fill(is_zero, 1.0).pow(1.0 / p))


PReLU = layer(nn.PReLU, prelu, "weight")
SELU = layer(nn.SELU, selu, "inplace")
CELU = layer(nn.CELU, celu, "alpha", "inplace")
Hardsigmoid = layer(nn.Hardsigmoid, hardsigmoid, "inplace")
Softshrink = layer(nn.Softshrink, softshrink, "lambd")
Hardshrink = layer(nn.Hardshrink, hardshrink, "lambd")
