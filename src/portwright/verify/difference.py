"""The first difference of two runs, as data and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

# In the order of causes within a step: an earlier one explains the later ones.
Where = Literal[
    "crash",
    "parameter",
    "initial",
    "batch",
    "dropout",
    "output",
    "loss",
    "gradient",
    "optimizer",
    "update",
    "buffer",
    "steps",
    "run",  # outside the steps: data, schedule, evaluation, checkpoints
]


@dataclass(frozen=True)
class Difference:
    """The first difference of two runs.

    `parameter` is the first that differs, in the order of computation: forward for outputs, backward
    for gradients, as registered for updates. It is None where no parameter is concerned (batches, dropout, the number of steps).
    """

    step: int
    quantity: Where
    parameter: str | None
    reason: str
    original: Any = None
    ported: Any = None
    distance: float | None = None
    bound: float | None = None
    decided_by: str = "exact"
    diagnosis: str = ""  # one of a fixed set of words, such as zero-grad, learning-rate, batch-shifted
    module: str | None = None
    line: str = ""  # file:line of the port's code
    option: str | None = None  # of the optimizer
    parameters: tuple[str, ...] = ()  # all that differ in this quantity at this step
    rule: str | None = None
    rule_reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form; NaN and infinities become text."""
        rows = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: plain(value) for name, value in rows.items()}


def plain(value: Any) -> Any:
    """Converts a value to what JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return value


def number(value: Any) -> str:
    """Formats a number to six digits, and any other value with str."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "none" if value is None else f"{value}"
    return f"{value:.6g}"


def count(many: int, noun: str) -> str:
    return f"{many} {noun}{'' if many == 1 else 's'}"


def listing(names: tuple[str, ...], most: int = 3) -> str:
    """Joins the first names, and says how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
