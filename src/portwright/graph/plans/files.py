"""The plans of one subject as documents: one for the screen, and the files of `--out`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from portwright.errors import UserError
from portwright.graph.plans.key_metrics import answer_key_metrics
from portwright.graph.plans.plan import Plan
from portwright.graph.plans.request import Data
from portwright.job.atomic import atomic_write_text


class HasData(Protocol):
    """What was planned, of whichever framework."""

    data: Data


@dataclass
class Planned:
    """The plans of one subject, by target name in small letters."""

    subject: HasData
    plans: dict[str, Plan] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return all(plan.is_good for plan in self.plans.values())

    def as_json(self) -> dict[str, Any]:
        documents = {
            name: {**plan.as_json(), "key_metrics": answer_key_metrics(plan, self.subject.data)["answers"]}
            for name, plan in self.plans.items()
        }
        return next(iter(documents.values())) if len(documents) == 1 else {"targets": documents}


def write_files(planned: Planned, out: Path) -> list[Path]:
    """plan.html for all, and for each target, in a folder of its own if there are several, its JSON files and drawings."""
    from portwright.graph.picture import write_page, write_svgs

    written: list[Path] = []
    documents = {name: plan.as_json() for name, plan in planned.plans.items()}
    try:
        for name, plan in planned.plans.items():
            folder = out / name if len(planned.plans) > 1 else out
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in _files(plan, documents[name], planned.subject).items():
                # No space behind a colon: the commands of the key-metrics page grep for the numbers so.
                text = json.dumps(content, indent=1, separators=(",", ":"))
                atomic_write_text(folder / file, text + "\n")
                written.append(folder / file)
            written += write_svgs(documents[name], folder)
        only = next(iter(documents.values())) if len(documents) == 1 else {"targets": documents}
        written.append(write_page(only, out / "plan.html"))
    except OSError as error:
        raise UserError(f"cannot write to '{out}': {error}.", "Choose another folder with --out.") from error
    return written


def _files(plan: Plan, document: Mapping[str, Any], subject: HasData) -> dict[str, Mapping[str, Any]]:
    files: dict[str, Mapping[str, Any]] = {
        "plan.json": document,
        "key_metrics.json": answer_key_metrics(plan, subject.data),
    }
    if "estimated_deltat" in plan.estimates:
        cycles = plan.estimates["estimated_deltat"]
        rest = {key: value for key, value in cycles.as_json().items() if key != "value"}
        files["deltat_estimate.json"] = {"estimated_deltat": cycles.value, **rest}
    return files
