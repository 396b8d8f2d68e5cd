"""The proof: a verdict with everything that it rests on, as data."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from portwright import __version__
from portwright.errors import ExitStatus
from portwright.job.atomic import atomic_write_text
from portwright.verify.compare import Comparison
from portwright.verify.difference import Difference, plain
from portwright.verify.measure import QUANTITIES
from portwright.verify.place import Place

FORMAT = 1
Settled = Literal["identical", "dtype", "noise", "float64"]


@dataclass
class Proof:
    """What `portwright verify` found. `equal` alone is not enough: `is_good` also asks where the port ran.

    `settled_by` says what decided that distances count as rounding: none were seen (identical), the dtype's tolerance, the
    measured noise of the original, or a repetition of both runs in float64.
    """

    equal: bool
    steps: int
    asked_steps: int
    first_difference: Difference | None
    commands: dict[str, str]
    losses: dict[str, list[list[float]]]
    distances: list[dict[str, Any]] = field(
        default_factory=list
    )  # worst of each quantity in each step, with its bound
    worst: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each quantity over all steps
    settled_by: Settled | None = None
    float64: dict[str, Any] | None = None  # the same worst distances when both were run in float64
    matches: list[dict[str, Any]] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    place: Place = field(default_factory=Place)
    seed: int = 0
    dropout: str = "drawn"
    dropout_values: dict[str, int] = field(default_factory=dict)
    noise: dict[str, Any] | None = None
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    scripts: dict[str, dict[str, str]] = field(default_factory=dict)  # path and sha256 of each
    optimizers: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bisected: dict[str, Any] | None = None
    front_end: dict[str, Any] | None = None  # what the vendor's own front end said of the ported step

    @property
    def is_good(self) -> bool:
        return self.equal and self.place.on_target is not False

    @property
    def status(self) -> ExitStatus:
        return ExitStatus.OK if self.is_good else ExitStatus.FINDINGS

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        rows: dict[str, Any] = {
            "format": FORMAT,
            "portwright": __version__,
            "equal": self.equal,
            "is_proof": self.is_good,
            "steps": self.steps,
            "asked_steps": self.asked_steps,
            "first_difference": self.first_difference.as_dict() if self.first_difference else None,
            "target": self.place.target or None,
            "on_target": self.place.on_target,
            "ran_on": self.place.ran_on,
            "where": self.place.says,
            "front_end": self.front_end,
            "commands": self.commands,
            "scripts": self.scripts,
            "losses": self.losses,
            "settled_by": self.settled_by,
            "tolerances": self.worst,
            "distances": self.distances,
            "noise": self.noise,
            "float64": self.float64,
            "matches": self.matches,
            "unmatched": self.unmatched,
            "missing": self.missing,
            "seed": self.seed,
            "dropout": self.dropout,
            "dropout_values": self.dropout_values,
            "optimizers": self.optimizers,
            "versions": self.versions,
            "machine": {"system": platform.platform(), "processor": platform.machine()},
            "bisected": self.bisected,
            "notes": self.notes,
        }
        return {key: plain(value) for key, value in rows.items()}

    def write(self, path: Path) -> None:
        atomic_write_text(path, json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")


def worst_by_step(comparison: Comparison) -> list[dict[str, Any]]:
    """For each step and quantity the distance that takes most of its bound."""
    rows = []
    for step in range(1, comparison.steps + 1):
        for quantity in QUANTITIES:
            held = comparison.worst(quantity, step)
            if held is not None:
                rows.append(
                    {
                        "step": step,
                        "quantity": quantity,
                        "name": held.measure.name,
                        "distance": held.measure.distance,
                        "bound": held.bound.value,
                        "decided_by": held.bound.decided_by,
                    }
                )
    return rows


def worst_of_all(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """For each quantity the step and tensor that came nearest to its bound."""
    rows: dict[str, dict[str, Any]] = {}
    for quantity in QUANTITIES:
        held = comparison.worst(quantity)
        if held is not None:
            rows[quantity] = {
                "worst_distance": held.measure.distance,
                "bound": held.bound.value,
                "decided_by": held.bound.decided_by,
                "step": held.measure.step,
                "name": held.measure.name,
                "compared": sum(h.measure.quantity == quantity for h in comparison.held),
            }
    return rows
