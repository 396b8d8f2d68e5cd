"""The plans of one subject as documents: one for the screen, and the files of `--out`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from portwright.errors import UserError
from portwright.graph.plans.estimate import MADE_BY
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


SOURCE = "PSC Neocortex, Compilation Key Metrics to Share"
_MOST_FILES = 1_000_000


def answer_key_metrics(plan: Plan, data: Data) -> dict[str, Any]:
    """The document `key_metrics.json`; what is not known is null, with the reason."""
    num_files, num_bytes = _measure(data.paths)
    batch = max(plan.graph.batch_size, 1)
    sample_bytes: float = plan.memory.inputs / batch
    sample_bytes = int(sample_bytes) if sample_bytes.is_integer() else sample_bytes
    no_fabric = f"mode {plan.fit.mode} on {plan.machine.name} has no such number"
    if num_files:
        at_least = (
            f"at least this: counting stopped at {num_files:,} files; " if num_files >= _MOST_FILES else ""
        )
        dataset: tuple[Any, str, str] = (
            num_bytes,
            "",
            f"{at_least}sum over the files that train_input names",
        )
    elif data.num_samples is not None:
        dataset = (
            round(data.num_samples * sample_bytes),
            "",
            "samples * bytes a sample, in memory: train_input names no files",
        )
    else:
        dataset = (
            None,
            f"train_input names no files, and {data.why_no_samples or 'nothing says how many samples'}",
            "",
        )
    return {
        "made_by": MADE_BY,
        "source_of_questions": SOURCE,
        "subject": plan.subject,
        "target": plan.report.target,
        "answers": {
            "ratio_of_utilized_components": _estimated(plan, "total_utilization", no_fabric),
            "cycles_per_sample": _estimated(plan, "estimated_deltat", no_fabric),
            "dataset_bytes": _metric(dataset[0], dataset[1], "bytes", dataset[2]),
            "dataset_files": _metric(
                num_files or None,
                "" if num_files else "train_input names no files that exist",
                "files",
                "counted",
            ),
            "num_samples": _metric(data.num_samples, data.why_no_samples, "samples", "len(dataset)"),
            "sample_bytes": _metric(
                sample_bytes if plan.memory.inputs else None,
                "" if plan.memory.inputs else "the step has no input",
                "bytes",
                "bytes of the batch's tensors / batch size",
            ),
            "batch_size": _metric(plan.graph.batch_size, "", "samples", "the batch that was planned"),
            "largest_batch": _metric(None, plan.fit.batch_note, "samples", "")
            if plan.fit.largest_batch is None
            else _estimated(plan, "largest_batch", ""),
            "parameters": _metric(plan.graph.num_parameters, "", "elements", "counted; shared ones once"),
            "flops_per_sample": _estimated(plan, "flops_per_sample", ""),
            "memory_bytes": _estimated(plan, "memory_bytes", ""),
            "execution_mode": _metric(plan.fit.mode, "", "", plan.fit.why_mode),
        },
    }


def _estimated(plan: Plan, name: str, reason: str) -> dict[str, Any]:
    estimate = plan.estimates.get(name)
    return _metric(None, reason, "", "") if estimate is None else {**estimate.as_json(), "reason": None}


def _metric(value: Any, reason: str, unit: str, formula: str) -> dict[str, Any]:
    return {
        "value": value,
        "unit": unit,
        "estimated": False,
        "formula": formula,
        "reason": (reason or "not known") if value is None else None,
    }


def _measure(paths: tuple[Path, ...]) -> tuple[int, int]:
    """Files and bytes below some paths."""
    sizes = list(islice(_sizes(paths), _MOST_FILES))
    return len(sizes), sum(sizes)


def _sizes(paths: tuple[Path, ...]) -> Iterator[int]:
    for path in paths:
        if path.is_file():
            yield path.stat().st_size
        for folder, _, names in os.walk(path):
            for name in names:
                file = Path(folder) / name
                if file.is_file():
                    yield file.stat().st_size
