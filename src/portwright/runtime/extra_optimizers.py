"""Optimizers that torch lacks, or has with other settings than the model zoo.

Adam and AdamW without bias correction, as BERT was trained; Lion (Chen et al., 2023, arXiv 2302.06675); LAMB (You et al., 2019,
arXiv 1904.00962); Adafactor (Shazeer and Stern, 2018, arXiv 1804.04235); Muon (Jordan et al., 2024; sizes of steps after Liu et
al., 2025, arXiv 2502.16982). Parameters may be spread over processes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from portwright.runtime.shards import gradient_of, local, mean_square, part_of, sums_of_squares, whole

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

__all__ = ["Adafactor", "Lamb", "Lion", "Muon", "UncorrectedAdam"]

# A quintic that lifts every singular value between 0 and 1 to near 1 within five rounds.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class _ByGroup(Optimizer):
    """Updates a group's tensors together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            tensors = [tensor for tensor in group["params"] if tensor.grad is not None and tensor.numel()]
            if tensors:
                self._update(tensors, group)
        return loss

    @abstractmethod
    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        """Takes one step with tensors that have a gradient and an element."""

    def _state_of(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        """This process's parts of one state of the tensors, which begins with zeros."""
        for tensor in tensors:
            if name not in self.state[tensor]:
                self.state[tensor][name] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
        return [local(self.state[tensor][name]) for tensor in tensors]

    def _count(self, tensors: list[Tensor]) -> list[int]:
        """Counts one more step of each tensor; the counters stay on the host, so that reading them waits for nothing."""
        counts = []
        for tensor in tensors:
            counter = self.state[tensor].setdefault("step", torch.zeros((), dtype=torch.float32))
            counter += 1
            counts.append(int(counter.item()))
        return counts

    def _adam_directions(
        self,
        tensors: list[Tensor],
        grads: list[Tensor],
        group: dict[str, Any],
        steps: list[int] | None = None,
    ) -> list[Tensor]:
        """Updates the running means of gradients and their squares; gives mean / (sqrt(square) + eps).

        With `steps` the means are corrected for their start at zero; with `amsgrad` the largest square so far counts.
        """
        beta1, beta2 = group["betas"]
        means, squares = self._state_of(tensors, "exp_avg"), self._state_of(tensors, "exp_avg_sq")
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        if group.get("amsgrad"):
            largest = self._state_of(tensors, "max_exp_avg_sq")
            torch._foreach_maximum_(largest, squares)
            squares = largest
        denominators = torch._foreach_sqrt(squares)
        if steps is not None:
            torch._foreach_div_(denominators, [(1 - beta2**step) ** 0.5 for step in steps])
        torch._foreach_add_(denominators, group["eps"])
        if steps is not None:
            torch._foreach_mul_(denominators, [1 - beta1**step for step in steps])
        return list(torch._foreach_div(means, denominators))


def _parts(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """This process's parts of the tensors and of their gradients."""
    return [local(tensor) for tensor in tensors], [local(gradient_of(tensor)) for tensor in tensors]


def _decay(weights: list[Tensor], group: dict[str, Any]) -> None:
    """Decays weights beside the gradient, as AdamW does."""
    if group["weight_decay"]:
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])


class UncorrectedAdam(_ByGroup):
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
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "decoupled": decoupled,
            },
        )

    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        weights, grads = _parts(tensors)
        if group["decoupled"]:
            _decay(weights, group)
        elif group["weight_decay"]:
            grads = list(torch._foreach_add(grads, weights, alpha=group["weight_decay"]))
        directions = self._adam_directions(tensors, grads, group)
        torch._foreach_add_(weights, directions, alpha=-group["lr"])


class Lion(_ByGroup):
    """Steps by the sign of a mix of momentum and gradient; weights decay beside the gradient."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        weights, grads = _parts(tensors)
        momenta = self._state_of(tensors, "exp_avg")
        directions = torch._foreach_lerp(momenta, grads, 1 - beta1)
        _decay(weights, group)
        torch._foreach_add_(weights, torch._foreach_sign(directions), alpha=-group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - beta2)


class Lamb(_ByGroup):
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
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "clamp_value": clamp_value,
                "correct_bias": correct_bias,
                "adam": adam,
            },
        )

    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        steps, (weights, grads) = self._count(tensors), _parts(tensors)
        directions = self._adam_directions(tensors, grads, group, steps if group["correct_bias"] else None)
        if group["weight_decay"]:
            torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
        if not group["adam"]:
            size = sums_of_squares(weights, tensors).sqrt()
            length = sums_of_squares(directions, tensors).sqrt()
            ratio = torch.where((size > 0) & (length > 0), size.clamp(max=group["clamp_value"]) / length, 1.0)
            torch._foreach_mul_(directions, list(ratio.unbind()))
        torch._foreach_add_(weights, directions, alpha=-group["lr"])


class Adafactor(_ByGroup):
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
        super().__init__(
            params,
            {
                "lr": lr,
                "eps": eps,
                "clip_threshold": clip_threshold,
                "decay_rate": decay_rate,
                "beta1": beta1,
                "weight_decay": weight_decay,
                "scale_parameter": scale_parameter,
                "relative_step": relative_step,
                "warmup_init": warmup_init,
            },
        )

    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        for tensor, num_steps in zip(tensors, self._count(tensors), strict=True):
            self._update_one(tensor, num_steps, group)

    def _update_one(self, tensor: Tensor, num_steps: int, group: dict[str, Any]) -> None:
        weight = local(tensor)
        if group["relative_step"]:
            ceiling = 1e-6 * num_steps if group["warmup_init"] else 1e-2
            group["lr"] = min(ceiling, num_steps**-0.5)
        rate: float | Tensor = group["lr"]
        if group["scale_parameter"]:
            rate = rate * mean_square(weight, tensor).sqrt().clamp(min=group["eps"][1])
        update = self._direction(tensor, 1.0 - num_steps ** group["decay_rate"], group["eps"][0])
        size = mean_square(update, tensor).sqrt()
        update = update * (rate / (size / group["clip_threshold"]).clamp(min=1.0)).to(update.dtype)
        if group["beta1"] is not None:
            (mean,) = self._state_of([tensor], "exp_avg")
            update = mean.lerp_(update, 1 - group["beta1"])
        if group["weight_decay"]:
            weight.mul_(1 - group["weight_decay"] * rate)
        weight.sub_(update)

    def _direction(self, tensor: Tensor, decay: float, eps: float) -> Tensor:
        """This process's part of the gradient divided by the root of its second moment."""
        gradient, state = gradient_of(tensor), self.state[tensor]
        if tensor.ndim < 2:
            part = local(gradient)
            (square,) = self._state_of([tensor], "exp_avg_sq")
            square.lerp_(part.square() + eps, 1 - decay)
            return part * square.rsqrt()
        if "exp_avg_sq_row" not in state:
            # Small, so every process keeps all of them.
            state["exp_avg_sq_row"] = local(tensor).new_zeros(tensor.shape[:-1])
            state["exp_avg_sq_col"] = local(tensor).new_zeros(tensor.shape[:-2] + tensor.shape[-1:])
        full = whole(gradient)
        squared = full.square() + eps
        row = state["exp_avg_sq_row"].lerp_(squared.mean(dim=-1), 1 - decay)
        column = state["exp_avg_sq_col"].lerp_(squared.mean(dim=-2), 1 - decay)
        row_factor = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
        return part_of(full * row_factor * column.rsqrt().unsqueeze(-2), tensor)


class Muon(_ByGroup):
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
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_steps": ns_steps,
                "adjust_lr": adjust_lr,
                "betas": betas,
                "eps": eps,
                "use_muon": use_muon,
            },
        )

    def _update(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        if group["use_muon"]:
            for tensor in tensors:
                self._update_matrix(tensor, group)
            return
        steps, (weights, grads) = self._count(tensors), _parts(tensors)
        directions = self._adam_directions(tensors, grads, group, steps)
        _decay(weights, group)
        torch._foreach_add_(weights, directions, alpha=-group["lr"])

    def _update_matrix(self, tensor: Tensor, group: dict[str, Any]) -> None:
        momentum, weight, gradient = group["momentum"], local(tensor), gradient_of(tensor)
        self._state_of([tensor], "momentum_buffer")
        mean = self.state[tensor]["momentum_buffer"].lerp_(gradient, 1 - momentum)
        full = whole(gradient.lerp(mean, momentum) if group["nesterov"] else mean)
        update = orthogonalize(full.reshape(full.shape[0], -1), group["ns_steps"]).reshape(full.shape)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * step_size(tuple(tensor.shape), group["adjust_lr"])
        weight.add_(part_of(update.to(weight.dtype), tensor), alpha=-rate)


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
