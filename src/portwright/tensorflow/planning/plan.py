"""Plans a TensorFlow step: captures it with this package, then checks and measures it with the code that torch's steps use."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portwright.discover import find_targets
from portwright.errors import UnsupportedError, UserError
from portwright.graph.kernels import KernelTable, Verdict
from portwright.graph.match import MatchReport, match
from portwright.graph.plans.files import Planned, write_files
from portwright.graph.plans.fit import parse_mode
from portwright.graph.plans.plan import make_plan
from portwright.graph.plans.report import report
from portwright.graph.plans.request import (
    Data,
    PlanOptions,
    check_options,
    machine_of,
    parse_memory,
    parse_targets,
)
from portwright.target import Target
from portwright.tensorflow.capturing.build import of_estimator
from portwright.tensorflow.capturing.capture import Captured, capture_step


@dataclass
class TensorFlowSubject:
    """A step to plan."""

    name: str
    capture: Callable[[], Captured]
    data: Data = field(default_factory=lambda: Data(why_no_samples="the input function does not say"))


def find_table(target: Target) -> KernelTable | None:
    """A target's table of TensorFlow ops: the module tensorflow_kernels of its folder; None where it has none."""
    package = f"portwright.targets.{target.name.lower()}"
    try:
        if importlib.util.find_spec(f"{package}.tensorflow_kernels") is None:
            return None
    except ModuleNotFoundError:  # a target of one file, or of another package
        return None
    made: KernelTable = importlib.import_module(f"{package}.tensorflow_kernels").table()
    return made


def can_judge(target: Target) -> bool:
    """Whether TensorFlow trains on a target, or the target has a table of TensorFlow ops."""
    return target.tensorflow_device is not None or find_table(target) is not None


def plan_step(subject: TensorFlowSubject, options: PlanOptions) -> Planned:
    """Plans on every requested target that `can_judge` accepts; an error if it accepts none."""
    if options.legalise:
        raise UserError(
            "--legalise was given for a TensorFlow model.",
            "Legal forms are torch layers; change what is refused as each cure says.",
        )
    judged = [target for target in options.targets if can_judge(target)]
    left_out = [target.name for target in options.targets if target not in judged]
    if not judged:
        able = [target.name.lower() for target in find_targets().values() if can_judge(target)]
        raise UserError(
            f"there is no table of TensorFlow ops for {', '.join(left_out)}, so that nothing can be said of it.",
            f"Plan for {', '.join(able)}, or plan the model's PyTorch twin.",
        )
    captured = subject.capture()
    notes = [*captured.graph.info["notes"]]
    if left_out:
        notes.append(f"no table of TensorFlow ops is known for {', '.join(left_out)}: left out.")
    if captured.graph.info["guards_update"]:
        notes.append(
            "the update is skipped where a gradient is not finite (loss scaling or a check of gradients)."
        )
    if not captured.graph.trains:
        notes.append(f"this is the plan of a forward pass in mode {captured.graph.info['mode']!r}.")
    mode, memories = parse_mode(options.mode), parse_memory(options.memory, options.targets)
    planned = Planned(subject)
    for target in judged:
        untrained = "" if target.tensorflow_device else target.no_tensorflow
        said = [f"TensorFlow does not train on {target.name}: {untrained}."] if untrained else []
        planned.plans[target.name.lower()] = make_plan(
            _judge(captured, target),
            machine_of(target, memories),
            subject=subject.name,
            mode=mode,
            optimizer=captured.optimizer,
            notes=(*said, *notes),
            untrained=untrained,
        )
    return planned


def _judge(captured: Captured, target: Target) -> MatchReport:
    table = find_table(target)
    if table is not None:
        return match(captured.graph, table, target.name)
    verdicts = tuple(Verdict("native") for _ in captured.graph.nodes)
    return MatchReport(target.name, "whatever TensorFlow runs here, it runs", captured.graph, verdicts, ())


def compile_step(
    estimator: Any,
    input_fn: Callable[..., Any],
    *,
    validate_only: bool = False,
    mode: str = "train",
    target: str = "csx",
    out: Path | str | None = None,
    name: str = "",
    root: Path | None = None,
    note: Callable[[str], None] = print,
    raises: bool = True,
) -> Planned:
    """Plans the step of `mode` that an Estimator would run; nothing is run, and no weight is made.

    With `validate_only` nothing is written; else plan.json, key_metrics.json and plan.html go to `out`, which is the
    Estimator's compile_dir, or `compile` in its model_dir. The report goes to `note`, line by line. A step that the target
    refuses, or has no room for, raises UnsupportedError behind it, unless `raises` is off.
    """
    options = PlanOptions(parse_targets(target))
    check_options(options)
    get_batch, make_spec = of_estimator(estimator, input_fn)
    subject = TensorFlowSubject(
        name or _name_of(estimator),
        lambda: capture_step(get_batch, make_spec, mode=mode, root=root),
    )
    planned = plan_step(subject, options)
    for line in report(planned.plans):
        note(line)
    if not validate_only:
        for file in write_files(planned, _folder(estimator, out)):
            note(f"wrote {file}")
    if raises and not planned.is_good:
        raise _refusal(planned)
    return planned


def _folder(estimator: Any, out: Path | str | None) -> Path:
    chosen = out or getattr(estimator, "_compile_dir", None)
    return Path(chosen) if chosen else Path(estimator.model_dir) / "compile"


def _name_of(estimator: Any) -> str:
    function = getattr(estimator, "_model_fn", None)
    return str(getattr(function, "__qualname__", "")) or type(estimator).__name__


def _refusal(planned: Planned) -> UnsupportedError:
    plan = next(plan for plan in planned.plans.values() if not plan.is_good)
    refused = plan.report.refused
    if not refused:
        return UnsupportedError(
            f"the step does not fit on {plan.machine.name}: {plan.fit.why}", " ".join(plan.changes)
        )
    first = refused[0]
    where = f"{first.file}:{first.line}: " if first.file else ""
    more = f" (and {len(refused) - 1} more place(s))" if len(refused) > 1 else ""
    return UnsupportedError(
        f"{where}{first.op}: {first.reason}{more}",
        first.cure,
        {"refused": [refusal.as_json() for refusal in refused]},
    )
