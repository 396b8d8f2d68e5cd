"""What each worker that reads data for the coordinator has sent, as a run's log tells it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from portwright.launch.metrics_file import Logged, number


@dataclass(frozen=True)
class Worker:
    """One worker's share since the run (re)started."""

    name: str
    host: str
    samples: int
    batches: int
    samples_per_second: float | None
    is_alive: bool


def read_workers(line: Logged | None) -> tuple[Worker, ...]:
    """The workers of a logged line of kind `stream`; what is not understood is left out."""
    listed: Any = line.raw.get("workers") if line is not None else None
    if not isinstance(listed, list):
        return ()
    return tuple(_worker(entry) for entry in listed if isinstance(entry, dict))


def _worker(entry: dict[str, Any]) -> Worker:
    rate = number(entry.get("rate", entry.get("samples_per_second")))
    return Worker(
        name=str(entry.get("name", "?")),
        host=str(entry.get("host", "")),
        samples=_count(entry.get("samples")),
        batches=_count(entry.get("batches")),
        samples_per_second=rate if math.isfinite(rate) else None,
        is_alive=entry.get("alive") is not False,
    )


def _count(value: Any) -> int:
    found = number(value)
    return int(found) if math.isfinite(found) else 0
