"""What the workers of a stream have done, for the log, the outcome and a person; the same words for both frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.stream.pool import WorkerCount


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
    lines = []
    for each in workers:
        lost = "" if each["alive"] else ", lost on the way"
        lines.append(
            f"{each['name']}: {each['samples']:,} samples in {each['batches']:,} batches, {each['bytes'] / 1e6:,.0f} MB, "
            f"{each['samples_per_second']:,.0f} samples/s{lost}"
        )
    return lines


def _title(name: str) -> str:
    """Workers are told apart by their task's number; one that is no number is the coordinator."""
    return f"worker {name}" if name.isdecimal() else name
