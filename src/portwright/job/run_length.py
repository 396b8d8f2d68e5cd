"""How long a run trains, from whichever way of saying so the params use."""

from __future__ import annotations

from collections.abc import Callable

from portwright.errors import UserError
from portwright.job.runconfig import RunConfig


def find_last_step(config: RunConfig, first_step: int, steps_in: Callable[[int], int | None]) -> int:
    """The step that a run ends at; `steps_in` says how many steps so many epochs take, or None where nobody knows."""
    ends = []
    if config.max_steps is not None:
        ends.append(config.max_steps)
    if config.num_steps is not None:
        ends.append(first_step + config.num_steps)
    if config.num_epochs is not None:
        ends.append(_steps_in(config, config.num_epochs, steps_in))
    if not ends:
        raise UserError(
            "nothing says how long to train.",
            "Set runconfig.max_steps or num_epochs, or give --max_steps.",
        )
    return min(ends)


def _steps_in(config: RunConfig, num_epochs: int, steps_in: Callable[[int], int | None]) -> int:
    per_epoch = config.steps_per_epoch
    num_steps = per_epoch * num_epochs if per_epoch is not None else steps_in(num_epochs)
    if num_steps is None:
        raise UserError(
            "runconfig.num_epochs is set, but the length of the training data is not known.",
            "Set runconfig.steps_per_epoch, or use runconfig.max_steps.",
        )
    if num_steps == 0:
        raise UserError(
            f"{num_epochs} epoch(s) have fewer batches than optimizer.grad_accum_steps, so not one update comes about.",
            "Lower grad_accum_steps, or train for more epochs.",
        )
    return num_steps
