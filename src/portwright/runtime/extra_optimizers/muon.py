"""Muon (Jordan et al., 2024; sizes of steps after Liu et al., 2025, arXiv 2502.16982)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.moments import (
    adam_directions,
    count,
    gradients,
    new_counter,
    parts,
    trained,
)
from portwright.runtime.extra_optimizers.shards import gradient_of, local, part_of, whole

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

# A quintic that lifts every singular value between 0 and 1 to near 1 within five rounds.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(Optimizer):
    """Makes the momentum of matrices orthogonal; groups with `use_muon` false take AdamW.

    A tensor of more than two axes counts as the matrix of its first axis against the rest.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        use_muon: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr": adjust_lr,
            "betas": betas,
            "eps": eps,
            "use_muon": use_muon,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            tensors = trained(group)
            if tensors and group["use_muon"]:
                self._step_matrices(tensors, group)
            elif tensors:
                self._step_others(tensors, group)
        return loss

    def _step_matrices(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        momentum = group["momentum"]
        for tensor in tensors:
            state, weight = self.state[tensor], local(tensor)
            if not state:
                state["momentum_buffer"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
            gradient = gradient_of(tensor)
            mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            full = whole(gradient.lerp(mean, momentum) if group["nesterov"] else mean)
            update = orthogonalize(full.reshape(full.shape[0], -1), group["ns_steps"]).reshape(full.shape)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            rate = group["lr"] * step_size(tuple(tensor.shape), group["adjust_lr"])
            weight.add_(part_of(update.to(weight.dtype), tensor), alpha=-rate)

    def _step_others(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[tensor] for tensor in tensors]
        for tensor, state in zip(tensors, states, strict=True):
            if not state:
                state["step"] = new_counter()
                state["exp_avg"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
        weights = parts(tensors)
        directions = adam_directions(
            gradients(tensors),
            parts(state["exp_avg"] for state in states),
            parts(state["exp_avg_sq"] for state in states),
            group["betas"],
            group["eps"],
            count(states),
        )
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, directions, alpha=-group["lr"])


def orthogonalize(matrix: Tensor, num_rounds: int) -> Tensor:
    """Replaces the singular values of a matrix by values near 1, in bfloat16."""
    a, b, c = _COEFFICIENTS
    x_MN = matrix.bfloat16()
    tall = x_MN.shape[0] > x_MN.shape[1]
    if tall:
        x_MN = x_MN.T
    x_MN = x_MN / x_MN.norm().clamp(min=1e-7)
    for _ in range(num_rounds):
        gram_MM = x_MN @ x_MN.T
        poly_MM = torch.addmm(gram_MM, gram_MM, gram_MM, beta=b, alpha=c)
        x_MN = torch.addmm(x_MN, poly_MM, x_MN, beta=a)
    return x_MN.T if tall else x_MN


def step_size(shape: tuple[int, ...], rule: str) -> float:
    """The factor on the learning rate for a matrix of this shape."""
    num_rows, num_columns = shape[0], math.prod(shape[1:])
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(num_rows, num_columns))
    return math.sqrt(max(1.0, num_rows / num_columns))
