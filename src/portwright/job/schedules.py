"""Learning rates as functions of the step alone, so that a resumed run goes on with exactly the same ones."""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from portwright.errors import suggest
from portwright.job.problems import (
    KeyPath,
    Problem,
    check_model,
    is_number,
    raise_problems,
    show,
    unknown_key,
)
from portwright.job.schedule_specs import SCHEDULES, Constant, ScheduleSpec

__all__ = ["SCHEDULES", "Schedule", "ScheduleSpec", "check_schedule", "parse_schedule", "read_specs"]


class Schedule(Protocol):
    """A learning rate for each step."""

    @property
    def is_constant(self) -> bool: ...

    def __call__(self, step: int) -> float: ...


class _Sequence:
    """Schedules that run one after another."""

    def __init__(self, specs: list[ScheduleSpec], lengths: list[int], *, restart: bool) -> None:
        self._specs, self._restart = specs, restart
        self._starts = [0, *itertools.accumulate(lengths)]

    @property
    def is_constant(self) -> bool:
        return all(spec.is_constant for spec in self._specs) and len({spec(0) for spec in self._specs}) == 1

    def __call__(self, step: int) -> float:
        index = bisect.bisect_right(self._starts, step) - 1
        return self._specs[index](step - self._starts[index] if self._restart else step)


def parse_schedule(value: Any, *, disable_lr_steps_reset: bool = False) -> Schedule:
    """Makes a schedule of a number, of a mapping with a `scheduler`, or of a list of such mappings.

    In a list each schedule counts steps from its own start, or from the run's with `disable_lr_steps_reset`.
    """
    specs = read_specs(value)
    if len(specs) == 1:
        return specs[0]
    lengths = [spec.num_steps or 0 for spec in specs[:-1]]
    return _Sequence(specs, lengths, restart=not disable_lr_steps_reset)


def read_specs(value: Any) -> list[ScheduleSpec]:
    """The schedules that a learning rate consists of, for code that builds its own schedule from them."""
    specs, problems = _read(value, ("learning_rate",))
    raise_problems(problems)
    return specs


def check_schedule(value: Any, at: KeyPath) -> list[Problem]:
    """What is wrong with a learning rate found at `at`, each problem with its own key."""
    return _read(value, at)[1]


def _read(value: Any, at: KeyPath) -> tuple[list[ScheduleSpec], list[Problem]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value <= sys.float_info.max:
            return [], [Problem(at, f"expected a finite number, 0 or more, received {show(value)}")]
        return [Constant.model_validate({"scheduler": "Constant", "learning_rate": value})], []
    if isinstance(value, Mapping):
        return _read_one(value, at)
    if not isinstance(value, (list, tuple)) or not value:
        cure = "Remove the quotes." if isinstance(value, str) and is_number(value) else ""
        return [], [
            Problem(at, f"expected a number, a schedule or a list of schedules, received {show(value)}", cure)
        ]
    specs: list[ScheduleSpec] = []
    problems: list[Problem] = []
    for index, item in enumerate(value):
        one, wrong = _read_one(item, (*at, index))
        if one and one[0].num_steps is None and index < len(value) - 1:
            wrong.append(
                Problem(
                    (*at, index),
                    f"schedule {index + 1} of {len(value)} does not say how long it lasts",
                    "Set total_iters.",
                )
            )
        specs += one
        problems += wrong
    return specs, problems


def _read_one(value: Any, at: KeyPath) -> tuple[list[ScheduleSpec], list[Problem]]:
    if not isinstance(value, Mapping):
        return [], [Problem(at, f"expected a mapping with a 'scheduler', received {show(value)}")]
    name = value.get("scheduler")
    if "scheduler" not in value:
        near = [
            unknown_key((*at, key), value[key], ScheduleSpec) for key in value if "sched" in str(key).lower()
        ]
        missing = Problem((*at, "scheduler"), "this key is required", f"Valid: {', '.join(SCHEDULES)}.")
        return [], near or [missing]
    wanted = name.strip().lower() if isinstance(name, str) else ""
    model = next(
        (SCHEDULES[kind] for kind in SCHEDULES if wanted in (kind.lower(), f"{kind.lower()}lr")), None
    )
    if model is None:
        cure = suggest(str(name).removesuffix("LR"), SCHEDULES)
        return [], [Problem((*at, "scheduler"), f"unknown schedule {show(name)}", cure)]
    spec, problems = check_model(model, value, at)
    return ([] if spec is None else [spec]), problems
