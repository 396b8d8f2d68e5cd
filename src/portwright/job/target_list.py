"""The rows of `portwright targets`, and the work of `portwright env`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from portwright.discover import find_targets, get_target
from portwright.errors import UserError
from portwright.job.vendor_env import find_usable, installed_version, make_environment, register_python
from portwright.target import Target


def describe_targets() -> list[dict[str, Any]]:
    """One row a target; `says` is the row for a person."""
    return [_describe(target) for target in find_targets().values()]


def _describe(target: Target) -> dict[str, Any]:
    reason, environment = target.why_not(), target.environment
    known = find_usable(environment) if environment is not None else None
    row: dict[str, Any] = {
        "name": target.name,
        "summary": target.summary,
        "available": reason is None,
        "sdk": None,
        "sdk_version": None,
        "interpreter": sys.executable if reason is None else None,
        "missing": reason,
        "cure": None if reason is None or environment is None else environment.cure,
        "why_not": reason,
    }
    if environment is not None:
        row["sdk"] = environment.distribution
        if known is not None:
            row |= {"sdk_version": known.sdk, "interpreter": str(known.python)}
        elif reason is not None:
            row["missing"] = reason.removesuffix(environment.cure).strip()
    elif reason is None:
        row |= {"sdk": "torch", "sdk_version": installed_version("torch") or None}
    row["says"] = _say(row)
    return row


def _say(row: dict[str, Any]) -> str:
    if not row["available"]:
        return str(row["why_not"])
    software = f"{row['sdk']} {row['sdk_version']}" if row["sdk_version"] else "software of unknown version"
    return f"can run here ({software}, {row['interpreter']})"


def provide_environment(
    name: str, python: Path | None, recreate: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Makes or registers the environment of a target, and describes it."""
    environment = get_target(name).environment
    if environment is None:
        have = [t.name.lower() for t in find_targets().values() if t.environment is not None]
        raise UserError(
            f"{name.upper()} runs in the environment that Portwright is in; it needs none of its own.",
            f"Targets with one: {', '.join(have)}.",
        )
    if python is not None and recreate:
        raise UserError("--recreate makes an environment, and --python names one.", "Give one of them.")
    if python is not None:
        known = register_python(environment, python)
    else:
        known = make_environment(environment, say, recreate=recreate)
    return {
        "target": environment.target,
        "sdk_name": environment.distribution,
        "sdk": known.sdk,
        "interpreter": str(known.python),
        "registered": known.is_registered,
    }
