"""Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235), with the settings of the model zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from portwright.runtime.extra_optimizers.moments import count, new_counter, trained
from portwright.runtime.extra_optimizers.shards import gradient_of, local, mean_square, part_of, whole

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class Adafactor(Optimizer):
    """Keeps the second moments of a matrix as one row and one column; torch's Adafactor has no relative step and no first moment.

    `lr` is the step relative to the parameter's size where `scale_parameter` is set. With `relative_step`, `lr` is not
    read; each step writes the rate that it used there.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for tensor in trained(group):
                self._step_one(tensor, group)
        return loss

    def _step_one(self, tensor: Tensor, group: dict[str, Any]) -> None:
        state, weight = self.state[tensor], local(tensor)
        if not state:
            state.update(_new_state(tensor, keeps_mean=group["beta1"] is not None))
        (num_steps,) = count([state])
        if group["relative_step"]:
            ceiling = 1e-6 * num_steps if group["warmup_init"] else 1e-2
            group["lr"] = min(ceiling, num_steps**-0.5)
        rate: float | Tensor = group["lr"]
        if group["scale_parameter"]:
            rate = rate * mean_square(weight, tensor).sqrt().clamp(min=group["eps"][1])
        decay = 1.0 - num_steps ** group["decay_rate"]
        update = _direction(gradient_of(tensor), tensor, state, decay, group["eps"][0])
        size = mean_square(update, tensor).sqrt()
        update = update * (rate / (size / group["clip_threshold"]).clamp(min=1.0)).to(update.dtype)
        if group["beta1"] is not None:
            mean = local(state["exp_avg"])
            update = mean.lerp_(update, 1 - group["beta1"])
        if group["weight_decay"]:
            weight.mul_(1 - group["weight_decay"] * rate)
        weight.sub_(update)


def _new_state(tensor: Tensor, keeps_mean: bool) -> dict[str, Tensor]:
    state = {"step": new_counter()}
    if keeps_mean:
        state["exp_avg"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
    if tensor.ndim >= 2:
        # Small, so every process keeps all of them.
        part = local(tensor)
        state["exp_avg_sq_row"] = part.new_zeros(tensor.shape[:-1])
        state["exp_avg_sq_col"] = part.new_zeros(tensor.shape[:-2] + tensor.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
    return state


def _direction(gradient: Tensor, tensor: Tensor, state: dict[str, Any], decay: float, eps: float) -> Tensor:
    """This process's part of the gradient divided by the root of its second moment."""
    if tensor.ndim < 2:
        part = local(gradient)
        square = local(state["exp_avg_sq"]).lerp_(part.square() + eps, 1 - decay)
        return part * square.rsqrt()
    full = whole(gradient)
    squared = full.square() + eps
    row = state["exp_avg_sq_row"].lerp_(squared.mean(dim=-1), 1 - decay)
    column = state["exp_avg_sq_col"].lerp_(squared.mean(dim=-2), 1 - decay)
    row_factor = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    return part_of(full * row_factor * column.rsqrt().unsqueeze(-2), tensor)
