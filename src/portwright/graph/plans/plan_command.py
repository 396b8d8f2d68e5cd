"""What `portwright plan` does between its command line and its exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path


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
    from portwright.graph.plans.planning import plan_subject
    from portwright.graph.plans.report import report
    from portwright.graph.plans.subject import Request, load_subject
    from portwright.graph.plans.wish import Wish, check_wish, parse_targets

    wish = Wish(parse_targets(targets), mode, memory, legalise)
    check_wish(wish)  # what is wrong with the command line is said before the user's code runs
    with _own_stdout():
        subject = load_subject(
            Request(path, params, tuple(overrides), tuple(inputs), batch_size, optimizer, compat)
        )
        planned = plan_subject(subject, wish)
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


@contextmanager
def _own_stdout() -> Iterator[None]:
    """What the user's code prints while it is loaded goes to stderr: stdout is the plan's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
