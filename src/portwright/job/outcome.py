"""What a run comes to: one document, and lines for a person."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from portwright.errors import ExitStatus


@dataclass
class Outcome:
    """What a run comes to; printed as JSON with --json."""

    mode: str
    target: str
    model_dir: str
    status: ExitStatus = ExitStatus.OK
    step: int = 0
    values: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # for a person, on stdout when no JSON is asked for
    is_shown: bool = True  # by the first process alone
    rates: dict[str, float] = field(default_factory=dict)  # steps and samples a second, when last logged
    emulated: str | None = None  # the vendor's software that was not there

    def as_json(self) -> dict[str, Any]:
        own = {
            name: value
            for name, value in vars(self).items()
            if name not in ("more", "lines", "is_shown", "rates")
        }
        if self.emulated is None:
            del own["emulated"]
        document: dict[str, Any] = _finite({**own, "status": int(self.status), **self.more})
        return document

    def title(self, kind: str) -> str:
        """What a line of progress starts with."""
        return kind if self.emulated is None else f"{self.target} (emulated) {kind}"

    def add_evaluation(self, values: dict[str, float]) -> None:
        """Takes the values of an evaluation, under names that say so."""
        self.values.update({_eval_name(name): value for name, value in values.items()})

    def say_where(self, trained: bool) -> None:
        """Lines that say what was reached, and where it lies."""
        for name, value in self.values.items():
            if name.startswith("eval/") and name != "eval/loss":
                self.lines.append(f"{name.removeprefix('eval/')}: {value:.4f}")
        self.say_emulated()
        if trained:
            if self.checkpoint:
                self.lines.append(f"checkpoint: {self.checkpoint}")
            self.lines.append(f"TensorBoard: tensorboard --logdir {self.model_dir}")

    def say_emulated(self) -> None:
        if self.emulated is not None:
            self.lines.append(f"emulated: {self.emulated} on this machine's CPU")


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _eval_name(name: str) -> str:
    return name if name.startswith("eval/") else f"eval/{name}"
