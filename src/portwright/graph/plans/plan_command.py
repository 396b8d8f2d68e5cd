"""What `portwright plan` does between its command line and its exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from portwright.job.stdout import stdout_to_stderr

if TYPE_CHECKING:
    from portwright.graph.plans.files import Planned
    from portwright.graph.plans.request import Request
    from portwright.graph.plans.wish import Wish


def plan_and_print(
    path: str,
    targets: str,
    params: Path | None,
    overrides: Sequence[str],
    mode: str | None,
    inputs: Sequence[str],
    batch_size: int | None,
    optimizer: str | None,
    memory: str | None,
    legalise: bool,
    compat: str | None,
    out: Path | None,
    as_json: bool,
) -> bool:
    """Whether every target supports the model and none is known to be too small for it."""
    from portwright.graph.plans.files import write_files
    from portwright.graph.plans.report import report
    from portwright.graph.plans.request import Request
    from portwright.graph.plans.wish import Wish, check_wish, parse_targets

    wish = Wish(parse_targets(targets), mode, memory, legalise)
    check_wish(wish)  # what is wrong with the command line is said before the user's code runs
    request = Request(path, params, tuple(overrides), tuple(inputs), batch_size, optimizer, compat)
    with stdout_to_stderr():  # what the user's code prints while it is loaded: stdout is the plan's
        planned = plan_request(request, wish)
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


def plan_request(request: Request, wish: Wish) -> Planned:
    """Loads what was asked for in its own framework, and plans it; the other framework is not imported."""
    from portwright.graph.plans.request import framework_of

    if request.compat == "estimator" or (request.compat is None and framework_of(request) == "tensorflow"):
        from portwright.tensorflow import load

        load()
        from portwright.tensorflow.planning.plan import plan_step
        from portwright.tensorflow.planning.subject import load_step

        return plan_step(load_step(request), wish)
    from portwright.graph.plans.planning import plan_subject
    from portwright.graph.plans.subject import load_subject

    return plan_subject(load_subject(request), wish)
