"""What each worker that reads data for the coordinator sends, as a run's log tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from portwright.launch.metrics_file import Logged

_RATE = "/samples_per_second"


@dataclass(frozen=True)
class Worker:
    """One task that reads data; of one that is gone the last rate that was told."""

    name: str
    samples_per_second: float | None
    is_alive: bool


def rates_in(line: Logged) -> dict[str, float]:
    """Samples a second of the workers that a line of kind `stream` names."""
    return {
        name.removesuffix(_RATE).replace("_", " "): rate
        for name, rate in line.values.items()
        if name.endswith(_RATE)
    }


def list_workers(rates: Mapping[str, float], last: Logged | None) -> tuple[Worker, ...]:
    """The workers that were told of since the last start: those that the last line does not name are gone."""
    alive = rates_in(last) if last is not None else {}
    return tuple(
        Worker(name, rate if math.isfinite(rate) else None, name in alive)
        for name, rate in sorted(rates.items(), key=lambda item: _natural(item[0]))
    )


def _natural(name: str) -> tuple[str, int, str]:
    """Worker 2 comes before worker 10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return (head, int(digits[-18:]) if digits.isascii() and digits else -1, name)
