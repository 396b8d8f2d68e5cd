"""`modelzoo.common.pytorch.optim`: optimizers with the model zoo's arguments and defaults, and a base for one's own.

They are torch's, or Portwright's where torch has none. A run makes its optimizer from params.yaml and does not pass
here; this is for code that makes one itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from portwright.runtime.extra_optimizers import Adafactor, Lamb, UncorrectedAdam

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "CSOptimizer",
    "Lamb",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
]

Betas = tuple[float, float]

ASGD = torch.optim.ASGD
NAdam = torch.optim.NAdam
RMSprop = torch.optim.RMSprop


class CSOptimizer(Optimizer):
    """For optimizers of one's own that make their whole state before the first step."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any], enable_global_step: bool = False) -> None:
        super().__init__(params, defaults)
        self.preinitialize()
        if enable_global_step:
            for parameter in (p for group in self.param_groups for p in group["params"]):
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)

    @abstractmethod
    def preinitialize(self) -> None:
        """Makes the state of every parameter."""

    @abstractmethod
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the weights."""

    def _get_global_step(self, p: torch.Tensor) -> torch.Tensor:
        """Counts a step of a parameter, and gives their number."""
        step: torch.Tensor = self.state[p]["step"]
        return step.add_(1)


class SGD(torch.optim.SGD):
    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)


class Adam(torch.optim.Adam):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


def AdamW(
    params: ParamsT,
    lr: float = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    correct_bias: bool = True,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam with weight decay beside the gradient, with or without bias correction."""
    if correct_bias:
        return torch.optim.AdamW(params, lr, betas, eps, weight_decay, amsgrad)
    return UncorrectedAdam(params, lr, betas, eps, weight_decay, amsgrad, decoupled=True)


class Adamax(torch.optim.Adamax):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)


class Adadelta(torch.optim.Adadelta):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, rho, eps, weight_decay, maximize=maximize)


class Adagrad(torch.optim.Adagrad):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-6,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize=maximize
        )


class RAdam(torch.optim.RAdam):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class Rprop(torch.optim.Rprop):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        etas: Betas = (0.5, 1.2),
        step_sizes: Betas = (1e-6, 50.0),
    ) -> None:
        super().__init__(params, lr, etas, step_sizes)
