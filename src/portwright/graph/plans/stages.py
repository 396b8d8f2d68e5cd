"""Layers in pipeline stages, one chip each: contiguous, balanced by work, each within its chip's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from portwright.graph.plans.placement import share_cores


@dataclass(frozen=True)
class Stage:
    """One chip's part of a pipeline."""

    index: int
    layers: tuple[int, ...]  # numbers of the layers
    memory_bytes: int
    memory_available: int
    cores: int  # at least, to hold its memory
    cores_available: int
    cores_of: tuple[int, ...]  # of each of its layers, by work and memory
    share_of_work: float
    in_flight: int  # batches whose activations it holds

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def split_stages(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    chip_cores: int,
    trains: bool,
    peak_bytes: int,
) -> list[Stage] | None:
    """The split whose busiest stage has the least work; None where some stage cannot fit.

    `saved` are the activations of one batch. A single stage is not a pipeline: it holds the peak of the step.
    """
    num_layers = len(work)
    if num_layers == 0:
        return []
    if not 1 <= num_stages <= num_layers:
        return None
    if num_stages == 1:
        ranges = [(0, num_layers)] if peak_bytes <= chip_bytes else None
    else:
        ranges = _balance(work, fixed, saved, num_stages, chip_bytes, trains)
    if ranges is None:
        return None
    total = sum(work) or 1.0
    stages = []
    for index, (first, last) in enumerate(ranges):
        in_flight = _in_flight(index, num_stages, trains)
        needs = [fixed[i] + saved[i] * in_flight for i in range(first, last)]
        memory = peak_bytes if num_stages == 1 else sum(needs)
        per_core = max(chip_bytes // chip_cores, 1)
        shares = share_cores(work[first:last], [n / per_core for n in needs], chip_cores, chip_cores)
        stages.append(
            Stage(
                index,
                tuple(range(first, last)),
                memory,
                chip_bytes,
                min(chip_cores, -(-memory // per_core)),
                chip_cores,
                tuple(int(c) for c in shares.cores) if shares is not None else (),
                sum(work[first:last]) / total,
                in_flight,
            )
        )
    return stages


def can_split(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
    peak_bytes: int,
) -> bool:
    """Whether `split_stages` would find a split, without looking for the best."""
    if num_stages == 1 or not work:
        return not work or peak_bytes <= chip_bytes
    if num_stages > len(work):
        return False
    return _fill(work, fixed, saved, num_stages, chip_bytes, trains, float("inf")) is not None


def _in_flight(stage: int, num_stages: int, trains: bool) -> int:
    return 2 * (num_stages - stage) - 1 if trains else 1


def _balance(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
) -> list[tuple[int, int]] | None:
    """Finds the least work of the busiest stage by bisection; a greedy fill tells whether a bound can be kept."""
    fullest = _fill(work, fixed, saved, num_stages, chip_bytes, trains, float("inf"))
    if fullest is None:
        return None
    low, high, best = max(work, default=0.0), sum(work), fullest
    for _ in range(60):
        middle = (low + high) / 2
        tried = _fill(work, fixed, saved, num_stages, chip_bytes, trains, middle)
        if tried is None:
            low = middle
        else:
            high, best = middle, tried
    return best


def _fill(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
    most_work: float,
) -> list[tuple[int, int]] | None:
    """Gives each stage as many layers as work and memory allow, and leaves at least one for each stage behind it."""
    ranges, first, num_layers = [], 0, len(work)
    for stage in range(num_stages):
        in_flight = _in_flight(stage, num_stages, trains)
        last, done, held = first, 0.0, 0
        while last < num_layers - (num_stages - stage - 1):
            more, size = work[last], fixed[last] + saved[last] * in_flight
            if last > first and (done + more > most_work or held + size > chip_bytes):
                break
            if held + size > chip_bytes or done + more > most_work:
                return None
            done, held, last = done + more, held + size, last + 1
        ranges.append((first, last))
        first = last
    return ranges if first == num_layers else None
