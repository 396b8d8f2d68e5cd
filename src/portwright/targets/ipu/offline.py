"""Programs compiled for IPUs that are not here: --validate_only and --compile_only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from portwright.target import Lowered
from portwright.targets.ipu.feed import join
from portwright.targets.ipu.options import Settings
from portwright.targets.ipu.programs import Programs, refusals
from portwright.targets.ipu.step import Phase

_GENERATIONS = {1: "Mk1", 2: "Mk2", 21: "Bow"}


def compile_phases(
    poptorch: Any,
    programs: Programs,
    training: Any,
    settings: Settings,
    calls: Iterable[tuple[Phase, Any, int]],
    folder: Path | None,
) -> Lowered:
    """Compiles each phase for its first batch, and with a folder leaves the executables there."""
    generation = _GENERATIONS[settings.section.offline_target]
    lines, rows = [], []
    for phase, batch, num_batches in calls:
        executor = training if phase == "train" else programs.get(phase, batch).executor
        tensors = join([batch] * num_batches)
        row: dict[str, Any] = {"step": phase, "batches_per_call": num_batches}
        with programs.step.tracing_as(phase, batch), refusals(poptorch, f"the {phase} step"):
            if folder is None:
                executor.compile(*tensors)
            else:
                path = folder / f"{phase}.poptorch"
                executor.compileAndExport(str(path), *tensors, export_model=False)
                row |= {"file": str(path), "bytes": path.stat().st_size}
        rows.append(row)
        kept = f" into {row['file']}" if folder is not None else ""
        lines.append(
            f"the {phase} step compiles for {generation} IPUs (PopTorch {poptorch.__version__}){kept}; "
            f"{num_batches} batch(es) a call"
        )
    return Lowered(tuple(lines), {"accepted": True, "poptorch": str(poptorch.__version__), "steps": rows})
