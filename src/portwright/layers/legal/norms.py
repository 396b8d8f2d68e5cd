"""Normalisation per instance and without running statistics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "batch_norm", "instance_norm"]


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.instance_norm, as a group norm of one channel a group."""
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError("instance_norm without the input's statistics needs running ones")
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.dim() < 2 or math.prod(input.shape[2:]) == 1:
        raise ValueError(
            f"instance_norm needs more than one value a channel, and got an input of shape {tuple(input.shape)}"
        )
    if running_mean is not None and running_var is not None:
        _update_running(input, running_mean, running_var, momentum)
    flat = input.reshape(*input.shape[:2], 1, -1)  # the front end lowers only group norms of images
    return F.group_norm(flat, input.shape[1], weight, bias, eps).reshape(input.shape)


@torch.no_grad()
def _update_running(input: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Updates running statistics by the batch's average of the instances' means and unbiased variances."""
    values = input.detach().reshape(input.shape[0], input.shape[1], -1).to(running_mean.dtype)
    mean = values.mean(2)
    var = ((values - mean.unsqueeze(2)) ** 2).sum(2) / (values.shape[2] - 1)
    running_mean.copy_(running_mean * (1.0 - momentum) + mean.mean(0) * momentum)
    running_var.copy_(running_var * (1.0 - momentum) + var.mean(0) * momentum)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm; one that keeps no running statistics is given some to forget."""
    if training and running_mean is None and running_var is None:
        dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
        running_mean = torch.zeros(input.shape[1], dtype=dtype, device=input.device)
        running_var = torch.ones(input.shape[1], dtype=dtype, device=input.device)
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


class _ByGroupNorm:
    """What the three layers do in place of torch's batch norm."""

    def _apply_instance_norm(self: Any, input: Tensor) -> Tensor:
        return instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )


class InstanceNorm1d(_ByGroupNorm, nn.InstanceNorm1d):
    """nn.InstanceNorm1d, as a group norm of one channel a group."""


class InstanceNorm2d(_ByGroupNorm, nn.InstanceNorm2d):
    """nn.InstanceNorm2d, as a group norm of one channel a group."""


class InstanceNorm3d(_ByGroupNorm, nn.InstanceNorm3d):
    """nn.InstanceNorm3d, as a group norm of one channel a group."""
