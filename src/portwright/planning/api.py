"""Plan as one call, and as the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portwright.graph.plans.files import Planned, write_files
from portwright.graph.plans.report import report
from portwright.graph.plans.request import PlanOptions, Request, check_options, framework_of, parse_targets
from portwright.job.stdout import stdout_to_stderr


def plan(
    subject: str,
    target: str,
    *,
    params: Path | None = None,
    overrides: Sequence[str] = (),
    mode: str | None = None,
    inputs: Sequence[str] = (),
    batch_size: int | None = None,
    optimizer: str | None = None,
    memory: str | None = None,
    legalise: bool = False,
    compat: str | None = None,
) -> Planned:
    """Says of a model folder, a run.py, FILE.py:CALLABLE or a reference model whether it runs and fits on targets.

    `target` is one, several with commas between them, or all. The result's `as_json()` is what the command prints.
    """
    options = PlanOptions(parse_targets(target), mode, memory, legalise)
    check_options(options)  # what is wrong with the command line is said before the user's code runs
    request = Request(subject, params, tuple(overrides), tuple(inputs), batch_size, optimizer, compat)
    # It is loaded and planned in its own framework; the other one is not imported.
    if compat == "estimator" or (compat is None and framework_of(request) == "tensorflow"):
        from portwright.tensorflow import load

        load()
        from portwright.planning.tensorflow_subject import load_step
        from portwright.tensorflow.planning.plan import plan_step

        return plan_step(load_step(request), options)
    from portwright.planning.subject import load_subject
    from portwright.planning.torch_plan import plan_subject

    return plan_subject(load_subject(request), options)


def plan_and_print(subject: str, target: str, *, out: Path | None, as_json: bool, **options: Any) -> bool:
    """Whether every target supports the model and none is known to be too small for it; `options` are those of `plan`."""
    with stdout_to_stderr():  # what the user's code prints while it is loaded: stdout is the plan's
        planned = plan(subject, target, **options)
        written = write_files(planned, out) if out is not None else []
    if as_json:
        document = planned.as_json()
        if written:
            document["files"] = [str(file) for file in written]
        print(json.dumps(document, indent=2))
    else:
        lines = report(planned.plans)
        lines += ["", "files:", *(f"  {file}" for file in written)] if written else []
        print("\n".join(lines))
    return planned.is_good
