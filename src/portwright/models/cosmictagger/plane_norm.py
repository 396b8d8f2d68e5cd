"""What follows a convolution: batch norm of each plane, a residual and a leaky rectifier, in one pass.

The planes of an event share their weights and lie in one batch, all first planes before all second ones. Statistics are
those of one plane, as if the planes had passed one after the other, and so are the updates of the running ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from portwright.layers.plain_ops import is_eager


def finish(
    x: Tensor, norm: nn.Module | None, num_planes: int, slope: float, residual: Tensor | None = None
) -> Tensor:
    """leaky_relu(norm(x) + residual); may overwrite `x`, which nothing else may use."""
    if norm is None:
        if is_eager(x):
            x = x if residual is None else x.add_(residual)
            return F.leaky_relu_(x, slope)
        return F.leaky_relu(x if residual is None else x + residual, slope)
    if type(norm) is nn.BatchNorm2d and norm.training and is_eager(x):
        assert norm.momentum is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(num_planes)
        statistics = (norm.running_mean, norm.running_var, norm.momentum, norm.eps)
        return _NormLeaky.apply(x, norm.weight, norm.bias, residual, *statistics, num_planes, slope)  # type: ignore[no-untyped-call]
    if norm.training and num_planes > 1:
        normed = torch.cat([norm(plane) for plane in x.chunk(num_planes)])
    else:  # running statistics are the same for every plane
        normed = norm(x)
    return F.leaky_relu(normed if residual is None else normed + residual, slope)


class _NormLeaky(torch.autograd.Function):
    """Keeps only the input and the output for backward: the output has the rectifier's sign."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        num_planes: int,
        slope: float,
    ) -> Tensor:
        y = torch.empty_like(x)
        means = x.new_empty(num_planes, weight.numel(), dtype=weight.dtype)
        scales = torch.empty_like(means)
        planes = zip(x.chunk(num_planes), y.chunk(num_planes), means, scales, strict=True)
        for source, result, mean, scale in planes:
            torch.ops.aten.native_batch_norm.out(
                source,
                weight,
                bias,
                running_mean,
                running_var,
                True,
                momentum,
                eps,
                out=result,
                save_mean=mean,
                save_invstd=scale,
            )
        if residual is not None:
            y.add_(residual)
        F.leaky_relu_(y, slope)
        ctx.save_for_backward(x, y, weight, means, scales)
        ctx.options = (eps, slope, residual is not None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, means, scales = ctx.saved_tensors
        eps, slope, has_residual = ctx.options
        through = torch.ops.aten.leaky_relu_backward(grad, y, slope, True)
        num_planes = len(means)
        parts = []
        for p, (source, part) in enumerate(zip(x.chunk(num_planes), through.chunk(num_planes), strict=True)):
            parts.append(
                torch.ops.aten.native_batch_norm_backward(
                    part, source, weight, None, None, means[p], scales[p], True, eps, [True, True, True]
                )
            )
        of_x = parts[0][0] if num_planes == 1 else torch.cat([part[0] for part in parts])
        of_weight, of_bias = (torch.stack([part[i] for part in parts]).sum(0) for i in (1, 2))
        return of_x, of_weight, of_bias, through if has_residual else None, *[None] * 6
