"""The outcome of a run, and what the workers of its stream have done: one document, and lines for a person."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portwright.errors import ExitStatus

if TYPE_CHECKING:
    from portwright.stream.pool import WorkerCount


@dataclass
class Outcome:
    """The outcome of a run; printed as JSON with --json."""

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
    is_shown: bool = True  # true in the first process alone
    rates: dict[str, float] = field(default_factory=dict)  # steps and samples a second, as last logged
    emulated: str | None = None  # the vendor's software that was emulated

    def as_json(self) -> dict[str, Any]:
        own = {
            name: value
            for name, value in vars(self).items()
            if name not in ("more", "lines", "is_shown", "rates")
        }
        if self.emulated is None:
            del own["emulated"]
        document: dict[str, Any] = finite_json({**own, "status": int(self.status), **self.more})
        return document

    def title(self, kind: str) -> str:
        """The beginning of a line of progress."""
        return kind if self.emulated is None else f"{self.target} (emulated) {kind}"

    def add_evaluation(self, values: dict[str, float]) -> None:
        """Adds the values of an evaluation, with names that begin with eval."""
        self.values.update({f"eval/{name.removeprefix('eval/')}": value for name, value in values.items()})

    def say_where(self, trained: bool) -> None:
        """Adds lines that say what was reached, and where it is saved."""
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


def finite_json(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def workers_of(counts: Iterable[WorkerCount]) -> list[dict[str, Any]]:
    """One object a worker, as --json shows them."""
    return [
        {
            "name": _title(each.name),
            "host": each.host,
            "batches": each.batches,
            "samples": each.samples,
            "bytes": each.bytes,
            "samples_per_second": round(each.rate, 1),
            "alive": each.alive,
        }
        for each in sorted(counts, key=lambda each: (len(each.name), each.name))
    ]


def values_of(counts: Iterable[WorkerCount]) -> dict[str, float]:
    """What is logged beside a step: each worker's samples a second, and how many workers there are."""
    counted = list(counts)
    values = {
        f"{_title(each.name).replace(' ', '_')}/samples_per_second": each.rate
        for each in counted
        if each.alive
    }
    return {**values, "num_workers": float(sum(each.alive for each in counted))}


def lines_of(workers: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['name']}: {each['samples']:,} samples in {each['batches']:,} batches, {each['bytes'] / 1e6:,.0f} MB, "
        f"{each['samples_per_second']:,.0f} samples/s{'' if each['alive'] else ', lost on the way'}"
        for each in workers
    ]


def _title(name: str) -> str:
    """The title of a worker: its task's number, or the coordinator."""
    return f"worker {name}" if name.isdecimal() else name
