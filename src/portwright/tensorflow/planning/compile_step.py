"""The step of an Estimator compiled as far as that goes without the vendor's software: matched, measured and written down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from portwright.errors import UnsupportedError
from portwright.graph.plans.data import Data
from portwright.graph.plans.files import Planned, write_files
from portwright.graph.plans.report import report
from portwright.graph.plans.wish import Wish, check_wish, parse_targets
from portwright.tensorflow.capturing.build import of_estimator
from portwright.tensorflow.capturing.capture import capture_step
from portwright.tensorflow.planning.plan import TensorFlowSubject, plan_step


def compile_step(
    estimator: Any,
    input_fn: Callable[..., Any],
    *,
    validate_only: bool = False,
    mode: str = "train",
    target: str = "csx",
    out: Path | str | None = None,
    name: str = "",
    data: Data | None = None,
    batch_size: int | None = None,
    root: Path | None = None,
    note: Callable[[str], None] = print,
    raises: bool = True,
) -> Planned:
    """Plans the step of `mode` that an Estimator would run; nothing is run, and no weight is made.

    With `validate_only` nothing is written; else plan.json, key_metrics.json and plan.html go to `out`, which is the
    Estimator's compile_dir, or `compile` in its model_dir. The report goes to `note`, line by line. A step that the target
    refuses, or has no room for, raises UnsupportedError behind it, unless `raises` is off.
    """
    wish = Wish(parse_targets(target))
    check_wish(wish)
    get_batch, make_spec = of_estimator(estimator, input_fn)
    subject = TensorFlowSubject(
        name or _name_of(estimator),
        lambda: capture_step(get_batch, make_spec, mode=mode, batch_size=batch_size, root=root),
    )
    if data is not None:
        subject.data = data
    planned = plan_step(subject, wish)
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
