"""LAMB (You et al., 2019, arXiv 1904.00962)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.moments import (
    adam_directions,
    count,
    gradients,
    new_counter,
    parts,
    trained,
)
from portwright.runtime.extra_optimizers.shards import sums_of_squares

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class Lamb(Optimizer):
    """Adam whose step in each tensor is as long as the tensor's norm, `clamp_value` at most, times the learning rate.

    Weight decay is part of the direction. A tensor of zeros, or a direction of zeros, takes Adam's step.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clamp_value: float = 10.0,
        correct_bias: bool = False,
        adam: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "clamp_value": clamp_value,
            "correct_bias": correct_bias,
            "adam": adam,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            tensors = trained(group)
            if not tensors:
                continue
            states = [self.state[tensor] for tensor in tensors]
            for tensor, state in zip(tensors, states, strict=True):
                if not state:
                    state["step"] = new_counter()
                    state["exp_avg"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
            steps = count(states)
            weights = parts(tensors)
            directions = adam_directions(
                gradients(tensors),
                parts(state["exp_avg"] for state in states),
                parts(state["exp_avg_sq"] for state in states),
                group["betas"],
                group["eps"],
                steps if group["correct_bias"] else None,
            )
            if group["weight_decay"]:
                torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
            if not group["adam"]:
                size = sums_of_squares(weights, tensors).sqrt()
                length = sums_of_squares(directions, tensors).sqrt()
                ratio = torch.where(
                    (size > 0) & (length > 0), size.clamp(max=group["clamp_value"]) / length, 1.0
                )
                torch._foreach_mul_(directions, list(ratio.unbind()))
            torch._foreach_add_(weights, directions, alpha=-group["lr"])
        return loss
