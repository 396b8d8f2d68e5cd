"""Adam and AdamW without bias correction, as BERT was trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.moments import adam_directions, gradients, parts, trained

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class UncorrectedAdam(Optimizer):
    """Adam whose first steps are not enlarged; `decoupled` decays weights beside the gradient, as AdamW does."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        decoupled: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "decoupled": decoupled,
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
            names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
            for tensor, state in zip(tensors, states, strict=True):
                for name in names:
                    if name not in state:
                        state[name] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
            weights, grads = parts(tensors), gradients(tensors)
            if group["weight_decay"]:
                if group["decoupled"]:
                    torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                else:
                    grads = list(torch._foreach_add(grads, weights, alpha=group["weight_decay"]))
            moments = [parts(state[name] for state in states) for name in names]
            directions = adam_directions(
                grads,
                moments[0],
                moments[1],
                group["betas"],
                group["eps"],
                largest=moments[2] if len(moments) > 2 else None,
            )
            torch._foreach_add_(weights, directions, alpha=-group["lr"])
        return loss
