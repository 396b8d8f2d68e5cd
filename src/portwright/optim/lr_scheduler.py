"""The model zoo's schedules, with its arguments, as torch schedulers for code that makes one itself."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from portwright.job.schedules import parse_schedule
from portwright.optim import signature_of


class LRScheduler(torch.optim.lr_scheduler.LambdaLR):
    """Sets a learning rate for each step; subclasses define it by `_lr_function`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        decay_steps: int | None = None,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self.decay_steps = decay_steps
        self.disable_lr_steps_reset = disable_lr_steps_reset
        super().__init__(optimizer, lr_lambda=self.lr_function)

    def lr_function(self, global_step: int) -> float:
        return float(self._lr_function(torch.tensor(global_step)))

    def _lr_function(self, global_step: torch.Tensor) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no _lr_function")

    def get_lr(self) -> list[Any]:  # releases of torch annotate this differently
        return [function(self.last_epoch) for function in self.lr_lambdas]


class _Scheduled(LRScheduler):
    """A schedule of params.yaml as a scheduler; subclasses have the zoo's arguments, each of which is a key."""

    scheduler: str
    __signature__: inspect.Signature

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        options = {
            _KEYS.get(name, name): value for name, value in given.arguments.items() if value is not None
        }
        optimizer, resets = options.pop("optimizer"), options.pop("disable_lr_steps_reset")
        self._schedule = parse_schedule({"scheduler": self.scheduler, **options})
        super().__init__(optimizer, options.get("total_iters"), resets)

    def _lr_function(self, global_step: torch.Tensor) -> float:
        return self._schedule(int(global_step))

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_schedule"}


_KEYS = {"learning_rate": "initial_learning_rate", "val": "learning_rate", "decay_steps": "total_iters"}


def _schedule(name: str, *arguments: str, **defaults: Any) -> type[_Scheduled]:
    signature = signature_of("optimizer", *arguments, **defaults, disable_lr_steps_reset=False)
    held = {"scheduler": name, "__signature__": signature, "__module__": __name__}
    return type(name, (_Scheduled,), held)


Constant = _schedule("Constant", "val", decay_steps=None)
Polynomial = _schedule(
    "Polynomial", "learning_rate", "end_learning_rate", "decay_steps", power=1.0, cycle=False
)
Exponential = _schedule("Exponential", "learning_rate", "decay_steps", "decay_rate", staircase=False)
InverseExponentialTimeDecay = _schedule(
    "InverseExponentialTimeDecay",
    "learning_rate",
    "step_exponent",
    "decay_steps",
    "decay_rate",
    staircase=False,
)
CosineDecay = _schedule("CosineDecay", "learning_rate", "end_learning_rate", "decay_steps")
CosineAnnealing = _schedule("CosineAnnealing", "learning_rate", "T_max", "eta_min")
PiecewiseConstant = _schedule("PiecewiseConstant", "learning_rates", "milestones")
Step = _schedule("Step", "learning_rate", "step_size", "gamma")
MultiStep = _schedule("MultiStep", "learning_rate", "gamma", "milestones")
