"""`modelzoo.common.pytorch.optim.lr_scheduler`: its schedules on torch's scheduler, for code that makes one itself."""

from __future__ import annotations

from typing import Any

import torch

from portwright.job.schedules import parse_schedule


class LRScheduler(torch.optim.lr_scheduler.LambdaLR):
    """A learning rate for each step, whatever the optimizer was made with; subclasses define `_lr_function`."""

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

    def get_lr(self) -> list[Any]:  # numbers; releases of torch differ in what they call them
        return [function(self.last_epoch) for function in self.lr_lambdas]


class _Scheduled(LRScheduler):
    """A schedule of params.yaml as a scheduler."""

    scheduler: str

    def _set(self, optimizer: torch.optim.Optimizer, disable_lr_steps_reset: bool, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        self._schedule = parse_schedule({"scheduler": self.scheduler, **given})
        LRScheduler.__init__(self, optimizer, options.get("total_iters"), disable_lr_steps_reset)

    def _lr_function(self, global_step: torch.Tensor) -> float:
        return self._schedule(int(global_step))

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_schedule"}


class Constant(_Scheduled):
    scheduler = "Constant"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        val: float,
        decay_steps: int | None = None,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(optimizer, disable_lr_steps_reset, learning_rate=val, total_iters=decay_steps)


class Polynomial(_Scheduled):
    scheduler = "Polynomial"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float = 1.0,
        cycle: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            end_learning_rate=end_learning_rate,
            total_iters=decay_steps,
            power=power,
            cycle=cycle,
        )


class Exponential(_Scheduled):
    scheduler = "Exponential"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            total_iters=decay_steps,
            decay_rate=decay_rate,
            staircase=staircase,
        )


class InverseExponentialTimeDecay(_Scheduled):
    scheduler = "InverseExponentialTimeDecay"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        step_exponent: int,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            step_exponent=step_exponent,
            total_iters=decay_steps,
            decay_rate=decay_rate,
            staircase=staircase,
        )


class CosineDecay(_Scheduled):
    scheduler = "CosineDecay"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            end_learning_rate=end_learning_rate,
            total_iters=decay_steps,
        )


class CosineAnnealing(_Scheduled):
    scheduler = "CosineAnnealing"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        T_max: int,
        eta_min: float,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            T_max=T_max,
            eta_min=eta_min,
        )


class PiecewiseConstant(_Scheduled):
    scheduler = "PiecewiseConstant"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rates: list[float],
        milestones: list[int],
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(optimizer, disable_lr_steps_reset, learning_rates=learning_rates, milestones=milestones)


class Step(_Scheduled):
    scheduler = "Step"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        step_size: int,
        gamma: float,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            step_size=step_size,
            gamma=gamma,
        )


class MultiStep(_Scheduled):
    scheduler = "MultiStep"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        gamma: float,
        milestones: list[int],
        disable_lr_steps_reset: bool = False,
    ) -> None:
        self._set(
            optimizer,
            disable_lr_steps_reset,
            initial_learning_rate=learning_rate,
            gamma=gamma,
            milestones=milestones,
        )
