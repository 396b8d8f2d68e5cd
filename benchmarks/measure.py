"""What every benchmark script shares: paired, interleaved timing, claims, and the JSON of a run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """A ratio from paired runs: the median, and a 95% interval of it by the bootstrap."""

    median: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Claim:
    text: str
    ratio: Ratio
    target: float
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        return self.ratio.median >= self.target if self.at_least else self.ratio.median <= self.target


def paired_ratio(ours: Sequence[float], peer: Sequence[float], seed: int = 0) -> Ratio:
    """Ratio of ours to a peer, pair by pair; the pairs ran one after the other, so a slow spell hits both."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return Ratio(statistics.median(ratios), medians[49], medians[1949], len(ratios))


def interleave(contestants: Mapping[str, Callable[[], float]], num_rounds: int) -> dict[str, list[float]]:
    """Runs every contestant once a round, in an order drawn anew each round; one round first to warm up."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    rng = random.Random(0)
    for round_number in range(num_rounds + 1):
        names = list(contestants)
        rng.shuffle(names)
        for name in names:
            value = contestants[name]()
            if round_number:
                results[name].append(value)
        print(f"\rround {round_number}/{num_rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def parse_arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write the figures to this file"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds, to see that it works; the claims are not judged on it",
    )
    return parser.parse_args()


def finish(
    arguments: argparse.Namespace, claims: Sequence[Claim], figures: Mapping[str, Any], **versions: str
) -> int:
    """Writes the JSON, prints a line a claim, and gives the exit status: 1 when a claim is short."""
    rows = [
        {"claim": c.text, "ratio": c.ratio.median, "interval": [c.ratio.low, c.ratio.high], "pairs": c.ratio.num_pairs,
         "target": c.target, "at_least": c.at_least, "met": c.is_met}
        for c in claims
    ]  # fmt: skip
    document = {
        "quick": arguments.quick,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **versions,
        },
        "figures": figures,
        "claims": rows,
    }
    if arguments.json is not None:
        from portwright.job.atomic import atomic_write_text

        atomic_write_text(arguments.json, json.dumps(document, indent=2) + "\n")
    for c in claims:
        sign = ">=" if c.at_least else "<="
        print(f"{c.text}, {c.ratio}, {sign} {c.target}, {'met' if c.is_met else 'short'}")
    return 0 if all(c.is_met for c in claims) else 1
