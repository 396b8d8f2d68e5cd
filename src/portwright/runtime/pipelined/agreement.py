"""What the stages of a step must know of each other before the update: the loss, and the norm of all gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from portwright.job.optimizer import OptimizerParams


@torch.no_grad()
def sum_of_squares(parameters: Sequence[torch.nn.Parameter], device: torch.device) -> torch.Tensor:
    """Of the gradients, as one number in double precision."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([norm.double() for norm in torch._foreach_norm(grads)]).square().sum()


def add_up(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each part summed over all processes."""
    told = torch.stack(list(parts))
    dist.all_reduce(told)
    return list(told.unbind())


@torch.no_grad()
def clip(parameters: Sequence[torch.nn.Parameter], spec: OptimizerParams, norm: torch.Tensor | None) -> None:
    """As a resident session clips, by the norm over all stages."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return
    if spec.max_gradient_value is not None:
        torch._foreach_clamp_min_(grads, -spec.max_gradient_value)
        torch._foreach_clamp_max_(grads, spec.max_gradient_value)
    elif spec.max_gradient_norm is not None:
        assert norm is not None
        factor = (spec.max_gradient_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
