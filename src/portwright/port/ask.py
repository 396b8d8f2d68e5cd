"""Plans what a style of `port` would do with an entry script, without writing anything."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.errors import UserError
from portwright.port.apply import make_port
from portwright.port.check import Selection
from portwright.port.files import show
from portwright.port.finding import Finding
from portwright.port.look import Look
from portwright.port.verdict import Plan

_OUT = Path("ported")


def ask(look: Look, target: str, style: str, selection: Selection) -> Plan:
    """The plan of a style; empty if the style does not support the target."""
    only = replace(selection, targets=frozenset([target]))
    try:
        if style == "layout":
            return _ask_layout(look, target, only)
        if style == "branches":
            return _ask_branches(look, target, only)
    except UserError as error:
        return Plan("", refusal=f"{error.message} {error.cure}".strip())
    made = make_port(look.files, only, ("safe",))
    return Plan(_command(look.files, target, "--write"), fixed=len(made.fixed), left=tuple(made.left))


def _ask_layout(look: Look, target: str, selection: Selection) -> Plan:
    from portwright.port.layout.api import port_layout

    codes = [rule.code for rule in selection.rules]
    done = port_layout([look.entry], [target], codes, out=_OUT, only_plan=True)
    if not done.changed:
        return Plan("", refusal=_refusal(done.left[0]))
    command = _command([look.entry], target, f"--style layout --out {_OUT}")
    return Plan(command, fixed=len(done.fixed), left=tuple(done.left))


def _ask_branches(look: Look, target: str, selection: Selection) -> Plan:
    from portwright.port.branches.api import BRANCH, NO_BRANCH, make_branches
    from portwright.port.branches.dialect import find_dialects

    known = find_dialects()
    if target not in known:
        return Plan("")
    made = make_branches(look.files, [known[target]], selection)
    if not any(f.code == BRANCH for f in made.fixed):
        return Plan("", refusal=_refusal(next(f for f in made.left if f.code == NO_BRANCH)))
    command = _command(look.files, target, "--style branches --write")
    safe = sorted({f.code for f in made.left if f.safety == "safe"})
    if safe:  # findings that the in-place style rewrites
        rest = f"--select {','.join(safe)} --write"
        command += f" && {_command(look.files, target, rest)}"
    left = tuple(f for f in made.left if f.safety != "safe")
    return Plan(command, fixed=len(made.fixed) + len(made.left) - len(left), left=left)


def _command(files: Sequence[Path], target: str, rest: str) -> str:
    return f"portwright port {shlex.join(show(path) for path in files)} --target {target} {rest}"


def _refusal(finding: Finding) -> str:
    return f"{finding.message} ({show(finding.path)}:{finding.line})"
