"""A norm of channels followed by ReLU, in one kernel where there is one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright import gpu_kernels


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """relu(norm(x)); in training on a GPU, batch norm and ReLU of images in channels_last are one kernel."""
    if isinstance(norm, nn.BatchNorm2d) and _may_fuse(norm, x):
        return _fused(norm, x)
    return F.relu(norm(x), inplace=True)


def _may_fuse(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and gpu_kernels.serves(x)
        and type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.weight is not None
        and x.dim() == 4
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.numel() > x.shape[1]
        and x.is_contiguous(memory_format=torch.channels_last)
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
    )


def _fused(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    from portwright.gpu_kernels.batch_norm_relu import BatchNormReLU

    batch, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(-1, channels)  # a view
    y, mean, variance = BatchNormReLU.apply(rows, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            factor: float | Tensor = (
                norm.momentum if norm.momentum is not None else 1 / norm.num_batches_tracked
            )
            count = rows.shape[0]
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), factor)
            norm.running_var.lerp_((variance * (count / (count - 1))).to(norm.running_var.dtype), factor)
    return y.view(batch, height, width, channels).permute(0, 3, 1, 2)
