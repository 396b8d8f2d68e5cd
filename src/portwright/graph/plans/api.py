"""Plan as one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portwright.graph.plans.files import Planned
from portwright.graph.plans.plan_command import plan_request
from portwright.graph.plans.request import Request
from portwright.graph.plans.wish import Wish, check_wish, parse_targets


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
    wish = Wish(parse_targets(target), mode, memory, legalise)
    check_wish(wish)
    request = Request(subject, params, tuple(overrides), tuple(inputs), batch_size, optimizer, compat)
    return plan_request(request, wish)
