"""The proof: a verdict with all its evidence, as data."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from portwright import __version__
from portwright.discover import find_targets
from portwright.errors import ExitStatus
from portwright.job.atomic import atomic_write_text
from portwright.verify.compare import Comparison
from portwright.verify.difference import Difference, plain
from portwright.verify.measure import QUANTITIES
from portwright.verify.recording import Recording


@dataclass
class Place:
    """Where the steps ran; `on_target` is None where the command named no target."""

    target: str = ""
    on_target: bool | None = None
    ran_on: dict[str, Any] = field(default_factory=dict)
    says: str = ""


def find_place(ported: Recording) -> Place:
    """Finds where the steps ran, with one sentence on what the proof is worth there."""
    devices = sorted({device.partition(":")[0] for step in ported.steps for device in step.devices})
    ran_on: dict[str, Any] = {"devices": devices, **ported.ran_on}
    target = ported.target.upper()
    if not target and ported.ran_on.get("vendor_calls"):
        lent = ported.ran_on.get("emulated") or ()
        target = next((t.name for t in find_targets().values() if t.emulator in lent), "")
    shown = _words(devices)
    if not target:
        return Place(
            "",
            None,
            ran_on,
            f"Both scripts ran on this machine's {shown}: the proof is about what they compute there.",
        )
    known = find_targets().get(target)
    if known is not None and known.device_types:
        is_there = bool(devices) and set(devices) <= set(known.device_types)
        says = (
            f"The port's steps ran on {shown}, as its command asks ({target})."
            if is_there
            else f"The command asks for {target}, and the port's steps ran on {shown}: this proves nothing about {target}."
        )
        return Place(target, is_there, ran_on, says)
    if ported.ran_on.get("emulated"):
        return _emulated(ported, target, ran_on)
    calls = list(ported.ran_on.get("vendor_calls") or [])
    if not calls and any(device != "cpu" for device in devices):
        calls = list(ported.ran_on.get("vendor_modules") or [])
    if calls:
        names = _words(str(call) for call in calls)
        return Place(
            target,
            True,
            ran_on,
            f"The port's steps went through the vendor's software for {target}: {names}.",
        )
    return Place(
        target,
        False,
        ran_on,
        f"The command asks for {target}, and its steps ran on {shown} without a call of the vendor's software: "
        f"this proves nothing about {target}.",
    )


def _emulated(ported: Recording, target: str, ran_on: dict[str, Any]) -> Place:
    """The place of an emulated port, whose executor must have made every step."""
    title = _words(ported.ran_on["emulated"].values())
    made = sum((ported.ran_on.get("vendor_calls") or {}).values())
    if made >= len(ported.steps) > 0:
        says = f"The port's steps ran under the rules of {title}, emulated on this machine's CPU: no {target} was used."
        return Place(target, True, ran_on, says)
    says = (
        f"Of the port's {len(ported.steps)} steps, {made} went through the executor of {title} (emulated), the others ran on the "
        f"host: this proves nothing about {target}."
    )
    return Place(target, False, ran_on, says)


def _words(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(n.upper() if n == "cpu" else n for n in listed[:5]) if listed else "an unknown device"


FORMAT = 1
Verdict = Literal["equal", "different", "cannot tell"]
Settled = Literal["identical", "dtype", "noise", "float64"]


@dataclass
class Proof:
    """What `portwright verify` found. `is_good` also requires that the port ran on its target.

    `settled_by` says why the runs count as equal: no distances (identical), the dtype's tolerance, the
    measured noise of the original, or a repetition of both runs in float64.
    """

    verdict: Verdict
    steps: int
    asked_steps: int
    first_difference: Difference | None
    commands: dict[str, str]
    losses: dict[str, list[list[float]]]
    # the worst distance of each quantity in each step, with its bound
    distances: list[dict[str, Any]] = field(default_factory=list)
    worst: dict[str, dict[str, Any]] = field(default_factory=dict)  # the same over all steps
    unsure: str = ""  # the reason for the verdict "cannot tell"
    bound: float | None = None  # the largest relative distance that would have counted as equal
    bound_quantity: str = ""  # its quantity
    nothing_ported: bool = False  # both programs ran the same files
    settled_by: Settled | None = None
    float64: dict[str, Any] | None = None  # worst distances of the repetition in float64
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
    beyond_steps: list[dict[str, Any]] = field(default_factory=list)  # as `compare_run.Part`
    bisected: dict[str, Any] | None = None
    front_end: dict[str, Any] | None = None  # what the vendor's own front end said of the ported step

    @property
    def equal(self) -> bool:
        return self.verdict == "equal"

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
            "verdict": self.verdict,
            "equal": self.equal,
            "why_unsure": self.unsure or None,
            "bound": self.bound,
            "bound_quantity": self.bound_quantity or None,
            "nothing_ported": self.nothing_ported,
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
            "beyond_steps": self.beyond_steps,
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
    """For each step and quantity the distance with the largest share of its bound."""
    rows = []
    for step in range(1, comparison.steps + 1):
        for quantity in QUANTITIES:
            checked = comparison.worst(quantity, step)
            if checked is not None:
                rows.append(
                    {
                        "step": step,
                        "quantity": quantity,
                        "name": checked.measure.name,
                        "distance": checked.measure.distance,
                        "bound": checked.bound.value,
                        "decided_by": checked.bound.decided_by,
                    }
                )
    return rows


def worst_of_all(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """For each quantity the step and tensor that came nearest to its bound."""
    rows: dict[str, dict[str, Any]] = {}
    for quantity in QUANTITIES:
        checked = comparison.worst(quantity)
        if checked is not None:
            rows[quantity] = {
                "worst_distance": checked.measure.distance,
                "bound": checked.bound.value,
                "decided_by": checked.bound.decided_by,
                "step": checked.measure.step,
                "name": checked.measure.name,
                "compared": sum(h.measure.quantity == quantity for h in comparison.checked),
            }
    return rows
