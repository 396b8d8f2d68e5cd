"""Optimizers with the arguments and defaults of the model zoo's `common.pytorch.optim`, and a base for a user's own.

They are torch's, or Portwright's where torch has none. Runs make their optimizers from params.yaml without this module;
it is for code that makes one itself, such as scripts that import the zoo's names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from portwright.runtime.extra_optimizers import Adafactor, Lamb, Lion, Muon, UncorrectedAdam

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
    "Lion",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
]

ASGD = torch.optim.ASGD
NAdam = torch.optim.NAdam
RMSprop = torch.optim.RMSprop


class CSOptimizer(Optimizer):
    """A base for users' optimizers, which make their whole state before the first step."""

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
        """Increments a parameter's number of steps, and gives it."""
        step: torch.Tensor = self.state[p]["step"]
        return step.add_(1)


def signature_of(*names: str, **defaults: Any) -> Signature:
    """One of the model zoo's signatures: arguments without a default, then those with one."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    needed = [Parameter(name, kind) for name in names]
    return Signature([*needed, *(Parameter(name, kind, default=value) for name, value in defaults.items())])


def _of_torch(kind: type[Optimizer], *names: str, **defaults: Any) -> Any:
    """A subclass of torch's optimizer with the zoo's arguments in the zoo's order."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        kind.__init__(self, **given.arguments)

    held = {
        "__init__": __init__,
        "__signature__": signature_of("params", *names, **defaults),
        "__module__": __name__,
    }
    return type(kind.__name__, (kind,), held)


_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
SGD = _of_torch(
    torch.optim.SGD, "lr", momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False
)
Adam = _of_torch(torch.optim.Adam, **_ADAM, amsgrad=False)
Adamax = _of_torch(torch.optim.Adamax, **_ADAM, maximize=False)
RAdam = _of_torch(torch.optim.RAdam, **_ADAM)
Adadelta = _of_torch(torch.optim.Adadelta, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0, maximize=False)
Adagrad = _of_torch(
    torch.optim.Adagrad, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-6, maximize=False
)  # fmt: skip
Rprop = _of_torch(torch.optim.Rprop, lr=1e-3, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0))


def AdamW(
    params: ParamsT,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    correct_bias: bool = True,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam with decoupled weight decay, with or without bias correction."""
    if correct_bias:
        return torch.optim.AdamW(params, lr, betas, eps, weight_decay, amsgrad)
    return UncorrectedAdam(params, lr, betas, eps, weight_decay, amsgrad, decoupled=True)
