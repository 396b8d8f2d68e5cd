"""Lion (Chen et al., 2023, arXiv 2302.06675)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.moments import gradients, parts, trained

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class Lion(Optimizer):
    """Steps by the sign of a mix of momentum and gradient; weights decay beside the gradient."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            tensors = trained(group)
            if not tensors:
                continue
            for tensor in tensors:
                if not self.state[tensor]:
                    self.state[tensor]["exp_avg"] = torch.zeros_like(
                        tensor, memory_format=torch.preserve_format
                    )
            beta1, beta2 = group["betas"]
            weights, grads = parts(tensors), gradients(tensors)
            momenta = parts(self.state[tensor]["exp_avg"] for tensor in tensors)
            directions = torch._foreach_lerp(momenta, grads, 1 - beta1)
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, torch._foreach_sign(directions), alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1 - beta2)
        return loss
