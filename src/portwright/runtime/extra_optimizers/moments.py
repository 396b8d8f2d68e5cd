"""The two running means of Adam and the direction they give, and optimizers made of such means.

Adam and AdamW without bias correction, as BERT was trained; Lion (Chen et al., 2023, arXiv 2302.06675); LAMB (You et al., 2019,
arXiv 1904.00962).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.shards import gradient_of, local

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT
from portwright.runtime.extra_optimizers.shards import sums_of_squares


def trained(group: dict[str, Any]) -> list[Tensor]:
    """The parameters of a group that have a gradient and an element."""
    return [parameter for parameter in group["params"] if parameter.grad is not None and parameter.numel()]


def parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's parts of the tensors."""
    return [local(tensor) for tensor in tensors]


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """This process's parts of the gradients."""
    return [local(gradient_of(parameter)) for parameter in parameters]


def count(states: Iterable[dict[str, Any]]) -> list[int]:
    """Counts one more step in each state; the counters stay on the host, so that reading them waits for nothing."""
    counts = []
    for state in states:
        state["step"] += 1
        counts.append(int(state["step"].item()))
    return counts


def new_counter() -> Tensor:
    return torch.zeros((), dtype=torch.float32)


def adam_directions(
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    betas: tuple[float, float],
    eps: float,
    steps: list[int] | None = None,
    largest: list[Tensor] | None = None,
) -> list[Tensor]:
    """Updates both running means and gives mean / (sqrt(square) + eps).

    With `steps` the means are corrected for their start at zero; with `largest` the largest square so far counts.
    """
    beta1, beta2 = betas
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    if largest is not None:
        torch._foreach_maximum_(largest, squares)
    denominators = torch._foreach_sqrt(squares if largest is None else largest)
    if steps is not None:
        torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
    torch._foreach_add_(denominators, eps)
    if steps is not None:
        torch._foreach_mul_(denominators, [1 - beta1**step for step in steps])
    return list(torch._foreach_div(means, denominators))


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
