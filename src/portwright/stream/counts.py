"""What each worker has delivered."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerCount:
    """What a worker has delivered, duplicates not counted."""

    name: str
    host: str
    batches: int
    samples: int
    bytes: int
    busy_seconds: float  # spent making the batches
    alive: bool
    rate: float  # samples a second since it first connected


@dataclass
class _Tally:
    host: str
    since: float
    batches: int = 0
    samples: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0


class Tallies:
    """Counts by name; a worker that comes back under its name goes on counting."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def open(self, name: str, host: str, now: float) -> None:
        self._tallies.setdefault(name, _Tally(host, now)).host = host

    def add(self, name: str, samples: int, num_bytes: int, seconds: float) -> None:
        tally = self._tallies[name]
        tally.batches += 1
        tally.samples += samples
        tally.bytes += num_bytes
        tally.busy_seconds += seconds

    def read(self, alive: Container[str], now: float) -> list[WorkerCount]:
        return [
            WorkerCount(
                name=name,
                host=each.host,
                batches=each.batches,
                samples=each.samples,
                bytes=each.bytes,
                busy_seconds=each.busy_seconds,
                alive=name in alive,
                rate=each.samples / max(now - each.since, 1e-9),
            )
            for name, each in self._tallies.items()
        ]
