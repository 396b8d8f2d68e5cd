"""The kinds of learning-rate schedule: each one's keys in params.yaml, and its rate at a step.

Names, keys and numbers are those of the model zoo (1.6 to 2.10); the description of a key says where it differs.
Steps count updates from 0: the first update uses the rate of step 0.
"""

from __future__ import annotations

import bisect
import functools
import importlib
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from portwright.errors import UserError, suggest
from portwright.job.problems import show
from portwright.job.section import Section, contradiction

Rate = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]

_LENGTH = {"steps": "total_iters", "decay_steps": "total_iters"}
_RATE = {"learning_rate": "initial_learning_rate", "base_lr": "initial_learning_rate"}


class ScheduleSpec(Section):
    """One schedule as params.yaml describes it; calling it gives the learning rate of a step."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE}

    scheduler: str = Field(description="The kind of schedule, in any case; a trailing LR may be left out.")
    total_iters: Count | None = Field(
        None, description="Steps that this schedule lasts; every one in a list needs it, except the last."
    )

    def __call__(self, step: int) -> float:
        raise NotImplementedError

    @property
    def is_constant(self) -> bool:
        return False

    @property
    def num_steps(self) -> int | None:
        """How long it lasts in a list; None: as long as the run."""
        return self.total_iters


class _FromInitial(ScheduleSpec):
    initial_learning_rate: Rate = Field(description="Learning rate of step 0.")


class Constant(ScheduleSpec):
    """The same learning rate throughout."""

    aliases: ClassVar[Mapping[str, str]] = {
        **_LENGTH,
        "initial_learning_rate": "learning_rate",
        "base_lr": "learning_rate",
    }

    learning_rate: Rate = Field(description="The learning rate.")

    def __call__(self, step: int) -> float:
        return self.learning_rate

    @property
    def is_constant(self) -> bool:
        return True


class Exponential(_FromInitial):
    """Multiplies by decay_rate every total_iters steps, gradually or at once."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "gamma": "decay_rate"}

    total_iters: Count | None = Field(
        None,
        description="Steps over which the rate is multiplied by decay_rate once (left out: 1), and length in a list.",
    )
    decay_rate: float = Field(gt=0, description="Factor after total_iters steps.")
    staircase: bool = Field(False, description="Apply the factor at once every total_iters steps.")

    def __call__(self, step: int) -> float:
        exponent = step / (self.total_iters or 1)
        return self.initial_learning_rate * _power(
            self.decay_rate, math.floor(exponent) if self.staircase else exponent
        )


class PiecewiseConstant(ScheduleSpec):
    """Holds each of learning_rates until the next milestone."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, "values": "learning_rates", "boundaries": "milestones"}

    learning_rates: list[Rate] = Field(min_length=1, description="One more rate than there are milestones.")
    milestones: list[Annotated[int, Field(gt=0)]] = Field(
        description="Steps from which the next rate holds, increasing."
    )
    initial_learning_rate: Rate | None = Field(
        None, description="The first of learning_rates once more, if you like."
    )

    @model_validator(mode="after")
    def _fits(self) -> PiecewiseConstant:
        if len(self.learning_rates) != len(self.milestones) + 1:
            raise contradiction(
                f"{len(self.milestones)} milestones need {len(self.milestones) + 1} learning_rates, "
                f"received {len(self.learning_rates)}",
                "milestones",
                "learning_rates",
            )
        if any(later <= earlier for earlier, later in itertools.pairwise(self.milestones)):
            raise contradiction(f"milestones must increase, received {show(self.milestones)}", "milestones")
        if self.initial_learning_rate not in (None, self.learning_rates[0]):
            raise contradiction(
                f"initial_learning_rate is {self.initial_learning_rate}, but learning_rates begins with "
                f"{self.learning_rates[0]}",
                "initial_learning_rate",
                "learning_rates",
            )
        return self

    def __call__(self, step: int) -> float:
        return self.learning_rates[bisect.bisect_right(self.milestones, step)]

    @property
    def is_constant(self) -> bool:
        return len(set(self.learning_rates)) == 1


class Linear(_FromInitial):
    """A straight line from initial_learning_rate to end_learning_rate, which then holds."""

    total_iters: Count = Field(description="Steps until end_learning_rate is reached.")
    end_learning_rate: Rate = Field(description="Learning rate from step total_iters on.")
    cycle: bool = Field(
        False,
        description="Instead of holding at the end, stretch the decay to the next multiple of total_iters, as in "
        "TensorFlow. Cerebras's SDK accepts the key but holds.",
    )

    def __call__(self, step: int) -> float:
        return self._decayed(step, 1.0)

    def _decayed(self, step: int, power: float) -> float:
        length = self.total_iters
        if self.cycle and step > length:
            length *= -(-step // length)
        left = 1 - min(step / length, 1.0)
        return (self.initial_learning_rate - self.end_learning_rate) * _power(
            left, power
        ) + self.end_learning_rate


class Polynomial(Linear):
    """From initial_learning_rate to end_learning_rate along a power of the steps left."""

    power: float = Field(
        1.0, gt=0, description="Power of the fraction of steps that is left; 1: a straight line."
    )

    def __call__(self, step: int) -> float:
        return self._decayed(step, self.power)


class InverseExponentialTimeDecay(_FromInitial):
    """initial_learning_rate / (1 + decay_rate * step ** step_exponent / total_iters)."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "gamma": "decay_rate"}

    total_iters: Count = Field(description="Divisor of the step's power, and length in a list.")
    step_exponent: int = Field(ge=0, description="Power of the step.")
    decay_rate: float = Field(ge=0, description="Factor on the step's power.")
    staircase: bool = Field(False, description="Round the divided power down.")

    def __call__(self, step: int) -> float:
        progress = _power(float(step), self.step_exponent) / self.total_iters
        if self.staircase and math.isfinite(progress):
            progress = math.floor(progress)
        return self.initial_learning_rate / (1.0 + self.decay_rate * progress)


class InverseSquareRootDecay(ScheduleSpec):
    """initial_learning_rate * scale / sqrt(max(step, warmup_steps))."""

    initial_learning_rate: Rate = Field(1.0, description="Factor on the rate.")
    scale: float = Field(1.0, ge=0, description="Another factor on the rate.")
    warmup_steps: Count = Field(1, description="Steps for which the rate holds before it decays.")

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * self.scale / math.sqrt(max(step, self.warmup_steps))


class CosineDecay(_FromInitial):
    """Half a cosine from initial_learning_rate to end_learning_rate, which then holds."""

    total_iters: Count = Field(description="Steps until end_learning_rate is reached.")
    end_learning_rate: Rate = Field(description="Learning rate from step total_iters on.")

    def __call__(self, step: int) -> float:
        return _cosine(
            self.initial_learning_rate, self.end_learning_rate, min(step, self.total_iters) / self.total_iters
        )


class CosineAnnealing(_FromInitial):
    """A cosine between initial_learning_rate and eta_min that goes on up and down."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "t_max": "T_max"}

    T_max: Count = Field(description="Steps from the highest rate to the lowest.")
    eta_min: Rate = Field(0.0, description="Lowest learning rate.")

    def __call__(self, step: int) -> float:
        return _cosine(self.initial_learning_rate, self.eta_min, step % (2 * self.T_max) / self.T_max)


class CosineAnnealingWarmRestarts(_FromInitial):
    """Half a cosine down to eta_min, over and over, each T_mult times as long as the one before."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "t_0": "T_0", "t_mult": "T_mult"}

    T_0: Count = Field(description="Steps of the first descent.")
    T_mult: int = Field(
        1, ge=1, description="Factor on the length of each further descent; Cerebras's SDK takes 1 only."
    )
    eta_min: Rate = Field(0.0, description="Lowest learning rate.")

    def __call__(self, step: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step -= length
            length *= self.T_mult
        return _cosine(self.initial_learning_rate, self.eta_min, step / length)


class Step(_FromInitial):
    """Multiplies by gamma every step_size steps."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "decay_rate": "gamma"}

    step_size: Count = Field(description="Steps between two multiplications.")
    gamma: float = Field(ge=0, description="Factor.")

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * _power(self.gamma, step // self.step_size)


class MultiStep(_FromInitial):
    """Multiplies by gamma at each milestone."""

    aliases: ClassVar[Mapping[str, str]] = {**_LENGTH, **_RATE, "decay_rate": "gamma"}

    gamma: float = Field(ge=0, description="Factor.")
    milestones: list[Annotated[int, Field(ge=0)]] = Field(
        description="Steps from which gamma applies once more, in order."
    )

    @field_validator("milestones")
    @classmethod
    def _in_order(cls, milestones: list[int]) -> list[int]:
        if sorted(milestones) != milestones:
            raise ValueError("milestones must be in order")
        return milestones

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * _power(self.gamma, bisect.bisect_right(self.milestones, step))


class Multiplicative(_FromInitial):
    """Multiplies by coefficient at every step."""

    coefficient: float = Field(ge=0, description="Factor.")

    def __call__(self, step: int) -> float:
        return self.initial_learning_rate * _power(self.coefficient, step)


class Lambda(_FromInitial):
    """initial_learning_rate times a function of yours, which takes the step and returns a factor."""

    lr_lambda: str = Field(
        description="The function, as module:function; the module is found as in an import of run.py."
    )

    @field_validator("lr_lambda")
    @classmethod
    def _names_a_function(cls, name: str) -> str:
        parts = name.split(":")
        if len(parts) != 2 or not all(word.isidentifier() for part in parts for word in part.split(".")):
            raise ValueError("expected module:function")
        return name

    def __call__(self, step: int) -> float:
        factor = find_function(self.lr_lambda, "lr_lambda")(step)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
            raise UserError(
                f"lr_lambda '{self.lr_lambda}' returned {show(factor)} for step {step}.",
                "Return a finite number.",
            )
        return self.initial_learning_rate * factor


class Cyclic(ScheduleSpec):
    """Up from base_lr to max_lr and down again, over and over."""

    aliases: ClassVar[Mapping[str, str]] = {
        **_LENGTH,
        "learning_rate": "base_lr",
        "initial_learning_rate": "base_lr",
    }

    base_lr: Rate = Field(description="Lowest learning rate.")
    max_lr: Rate = Field(description="Highest learning rate.")
    step_size_up: Count = Field(2000, description="Steps from base_lr to max_lr.")
    step_size_down: Count | None = Field(None, description="Steps back to base_lr; left out: step_size_up.")
    mode: Literal["triangular", "triangular2", "exp_range"] = Field(
        "triangular",
        description="Height of the cycles: all the same, halved each cycle, or times gamma each step.",
    )
    gamma: float = Field(1.0, ge=0, description="Factor a step, in mode exp_range.")
    scale_mode: Literal["cycle", "iterations"] | None = Field(
        None, description="What the height depends on; mode decides it, so it may only say the same."
    )

    @model_validator(mode="after")
    def _mode_decides(self) -> Cyclic:
        decided = "iterations" if self.mode == "exp_range" else "cycle"
        if self.scale_mode not in (None, decided):
            raise contradiction(
                f"mode '{self.mode}' scales by {decided}, received scale_mode '{self.scale_mode}'",
                "scale_mode",
                "mode",
            )
        return self

    def __call__(self, step: int) -> float:
        down = self.step_size_down or self.step_size_up
        cycle, position = divmod(step, self.step_size_up + down)
        if position <= self.step_size_up:
            height = position / self.step_size_up
        else:
            height = (self.step_size_up + down - position) / down
        if self.mode == "triangular2":
            height *= _power(0.5, cycle)
        elif self.mode == "exp_range":
            height *= _power(self.gamma, step)
        return self.base_lr + (self.max_lr - self.base_lr) * height


class OneCycle(_FromInitial):
    """Up from initial_learning_rate to max_lr, then down to a small part of it, which then holds."""

    aliases: ClassVar[Mapping[str, str]] = {
        **_RATE,
        "total_iters": "total_steps",
        "steps": "total_steps",
        "decay_steps": "total_steps",
    }

    max_lr: Rate = Field(description="Highest learning rate.")
    total_steps: Count = Field(
        1000, description="Steps of the whole cycle; the last rate holds from there on."
    )
    pct_start: float = Field(0.3, ge=0, le=1, description="Fraction of total_steps in which the rate rises.")
    final_div_factor: float = Field(
        1e4, gt=0, description="The last rate is initial_learning_rate divided by this."
    )
    three_phase: bool = Field(
        False,
        description="Fall back to initial_learning_rate as fast as it rose, and only then to the last rate.",
    )
    anneal_strategy: Literal["cos", "linear"] = Field("cos", description="Shape of each phase.")

    @model_validator(mode="after")
    def _has_room(self) -> OneCycle:
        if self.three_phase and self.pct_start > 0.5:
            raise contradiction(
                f"three_phase rises and falls in twice pct_start, which is {self.pct_start}: more than the whole cycle",
                "pct_start",
                "three_phase",
            )
        return self

    @property
    def num_steps(self) -> int | None:
        return self.total_steps

    def __call__(self, step: int) -> float:
        rise = self.pct_start * self.total_steps
        last = self.total_steps - 1
        lowest = self.initial_learning_rate / self.final_div_factor
        phases = [(rise - 1, self.initial_learning_rate, self.max_lr), (last, self.max_lr, lowest)]
        if self.three_phase:
            phases[1:] = [
                (2 * rise - 2, self.max_lr, self.initial_learning_rate),
                (last, self.initial_learning_rate, lowest),
            ]
        start = 0.0
        for end, first_rate, last_rate in phases:
            if step <= end:
                progress = (step - start) / (end - start) if end > start else 1.0
                if self.anneal_strategy == "cos":
                    return _cosine(first_rate, last_rate, progress)
                return first_rate + (last_rate - first_rate) * progress
            start = end
        return lowest


def _cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


SCHEDULES: dict[str, type[ScheduleSpec]] = {
    spec.__name__: spec
    for spec in (
        Constant,
        CosineAnnealing,
        CosineAnnealingWarmRestarts,
        CosineDecay,
        Cyclic,
        Exponential,
        InverseExponentialTimeDecay,
        InverseSquareRootDecay,
        Lambda,
        Linear,
        MultiStep,
        Multiplicative,
        OneCycle,
        PiecewiseConstant,
        Polynomial,
        Step,
    )
}


@functools.cache
def find_function(name: str, key: str) -> Callable[..., Any]:
    """Imports `module:function`; `key` is the key of the params that holds the name."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        reason = "there is no such module" if missing else f"it fails with {type(error).__name__}: {error}"
        cure = f"Python looks for modules in {', '.join(sys.path[:3])}, ..." if missing else "Mend it."
        raise UserError(f"{key} '{name}': cannot import '{module_name}': {reason}.", cure) from error
    found: Any = module
    for part in function_name.split("."):
        if not hasattr(found, part):
            public = [
                item for item in vars(found) if not item.startswith("_") and callable(getattr(found, item))
            ]
            raise UserError(f"{key} '{name}': '{module_name}' has no '{part}'.", suggest(part, public))
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{key} '{name}' is {show(found)}.", "Name a function.")
    function: Callable[..., Any] = found
    return function
