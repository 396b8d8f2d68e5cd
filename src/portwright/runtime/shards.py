"""Parameters that FSDP2 spread over processes: this process's part, the whole, and sums over the parts.

Elementwise arithmetic runs on the parts as plain tensors; only norms and whole matrices need the other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

try:
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Replicate, distribute_tensor  # type: ignore[attr-defined]

__all__ = [
    "DTensor",
    "distribute_tensor",
    "gradient_of",
    "local",
    "mean_square",
    "part_of",
    "sums_of_squares",
    "whole",
]


def local(tensor: Tensor) -> Tensor:
    """This process's part, sharing memory; a plain tensor is its own part. Call it without gradients enabled."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every process; all processes that share it must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """The part of a full tensor that this process holds of `like`; nothing is sent."""
    if not isinstance(like, DTensor):
        return full
    everywhere = [Replicate()] * like.device_mesh.ndim
    spread = DTensor.from_local(full, like.device_mesh, everywhere, run_check=False)
    return spread.redistribute(placements=like.placements).to_local()


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient, spread as its parameter is."""
    gradient = cast(Tensor, parameter.grad)
    if isinstance(gradient, DTensor) and gradient.placements != cast(DTensor, parameter).placements:
        return gradient.redistribute(placements=cast(DTensor, parameter).placements)
    return gradient


def sums_of_squares(parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each tensor over all its parts, in float32 or better."""
    sums = torch.stack([_sum_of_squares(part) for part in parts])
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            return _summed_over_processes(sums, parameters)
    return sums


def mean_square(part: Tensor, parameter: Tensor) -> Tensor:
    """The mean of squares of a tensor over all its parts."""
    return sums_of_squares([part], [parameter])[0] / parameter.numel()


def _sum_of_squares(part: Tensor) -> Tensor:
    wide = part.double() if part.dtype == torch.float64 else part.float()
    return wide.square().sum()


def _summed_over_processes(sums: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Adds the parts of sharded tensors; one message for all tensors of the same mesh axis."""
    axes: dict[tuple[int, int], list[int]] = {}
    groups: dict[tuple[int, int], dist.ProcessGroup] = {}
    for index, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            for dim, placement in enumerate(parameter.placements):
                if placement.is_shard():
                    axis = (id(parameter.device_mesh), dim)
                    axes.setdefault(axis, []).append(index)
                    groups[axis] = parameter.device_mesh.get_group(dim)
    for axis, indices in axes.items():
        if len(indices) == len(parameters):
            dist.all_reduce(sums, group=groups[axis])
            continue
        chosen = torch.tensor(indices, device=sums.device)
        message = sums[chosen].contiguous()
        dist.all_reduce(message, group=groups[axis])
        sums[chosen] = message
    return sums
