"""Learning-rate schedules in the SDK's own classes, which compute the rate inside the traced step.

A number set from Python would be a constant of the trace, with its value at the first step.
"""

from __future__ import annotations

import inspect
from itertools import accumulate
from typing import Any

from portwright.errors import UnsupportedError
from portwright.job import schedule_specs as specs
from portwright.job.optimizer import OptimizerParams
from portwright.job.schedules import ScheduleSpec, read_specs

_CURE = "Choose another schedule for CSX, or train with --on_cpu, CPU or GPU."


def make_sdk_scheduler(cstorch: Any, optimizer: Any, spec: OptimizerParams) -> Any | None:
    """The SDK's scheduler for the learning rate; None where it is constant; refuses schedules that the SDK computes differently."""
    if spec.schedule.is_constant:
        return None
    parts = read_specs(spec.learning_rate)
    module = cstorch.optim.lr_scheduler
    made = [_make(module, optimizer, part) for part in parts]
    lengths = [part.num_steps or 0 for part in parts[:-1]]
    if isinstance(parts[-1], specs.OneCycle):
        # The SDK's schedule continues below zero where ours stays.
        lengths.append(parts[-1].total_steps)
        made.append(module.ConstantLR(optimizer, learning_rate=parts[-1](parts[-1].total_steps)))
    if len(made) == 1:
        return made[0]
    if spec.disable_lr_steps_reset and len(parts) > 1:
        raise UnsupportedError(
            "optimizer.disable_lr_steps_reset has no counterpart in the SDK: its schedules in a list count from their own start.",
            "Leave it out, or write the list as one schedule.",
        )
    return module.SequentialLR(optimizer, made, list(accumulate(lengths)))


def _make(module: Any, optimizer: Any, part: ScheduleSpec) -> Any:
    name = type(part).__name__
    keys = part.model_dump(exclude={"scheduler"})
    match part:
        case specs.Lambda():
            raise UnsupportedError(
                "a Lambda schedule is a Python function, which the SDK cannot trace.", _CURE
            )
        case specs.CosineAnnealingWarmRestarts():
            raise UnsupportedError(
                "the SDK's CosineAnnealingWarmRestarts goes wrong after the first restart (2.10.0), and it takes no T_mult.",
                _CURE,
            )
        case specs.Linear() if part.cycle:  # Polynomial too
            raise UnsupportedError(f"the SDK accepts 'cycle' of {name}, and holds instead of cycling.", _CURE)
        case specs.Constant() | specs.PiecewiseConstant() | specs.Cyclic():
            keys.pop("initial_learning_rate", None)
            keys = {key: value for key, value in keys.items() if value is not None}
            if not isinstance(part, specs.Constant):
                keys.pop("total_iters", None)
        case specs.Exponential():
            keys["total_iters"] = part.total_iters or 1
    kind = getattr(module, f"{name}LR")
    accepted = inspect.signature(kind.__init__).parameters
    return kind(optimizer, **{key: value for key, value in keys.items() if key in accepted})


def go_to_step(scheduler: Any, step: int) -> None:
    """Sets a scheduler to its state after `step` updates."""
    from cerebras.pytorch.backend import current_backend_impl

    backend = current_backend_impl()
    # In a sequence the first counts every step, each other one those since its own start.
    parts = getattr(scheduler, "_schedulers", [])
    starts = [0, *getattr(scheduler, "_milestones", [])]
    for part, start in zip(parts, starts, strict=False):
        part.last_epoch = max(0, step - start)
        backend.setup_scheduler(part)
        scheduler.optimizer._schedulers_registry.pop(part, None)
    scheduler.last_epoch = step
    backend.setup_scheduler(scheduler)
    if not backend.is_csx:
        scheduler.update_last_value()  # on CSX the step itself does so, inside its trace
