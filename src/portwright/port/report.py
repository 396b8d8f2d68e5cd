"""Findings as text, for a person at a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from portwright.port.finding import SAFETIES, Finding

if TYPE_CHECKING:
    from portwright.port.api import PortResult

_MINUTES = {"safe": 0, "unsafe": 2, "manual": 10}  # a rough guess a finding, for planning
_MINUTES_OF = {
    "PW003": 60,
    "PW401": 60,
    "PW407": 120,
    "PW106": 45,
    "PW107": 60,
    "PW314": 45,
    "PW318": 90,
    "PW403": 15,
}


def text_report(findings: Sequence[Finding]) -> str:
    """Findings by file, each with its cure, and a summary."""
    lines = []
    for _, group in groupby(findings, key=lambda f: f.path):
        for finding in group:
            lines.append(f"{finding.path}:{finding.line}:{finding.column}: {finding.code} {finding.message}")
            mark = "" if finding.safety == "manual" else f" [{finding.safety} rewrite]"
            lines.append(f"    {finding.cure}{mark}")
        lines.append("")
    return "\n".join([*lines, summary(findings)])


def summary(findings: Sequence[Finding]) -> str:
    """Two sentences: how many in how many files, and what is done by a command and what by hand."""
    if not findings:
        return "No findings."
    told = summarise(findings)
    parts = ", ".join(f"{told[s]} {s}" for s in SAFETIES if told[s])
    return (
        f"{_count(len(findings), 'finding')} in {_count(told['files'], 'file')}: {parts}. "
        f"Fixed automatically: {told['share_fixed_automatically']} % by `portwright port`"
        f"{_with_unsafe(told)}; manual work left: about {told['manual_minutes']} minutes."
    )


def _with_unsafe(told: Mapping[str, int]) -> str:
    return f", {told['share_with_unsafe']} % with --unsafe" if told["unsafe"] else ""


def summarise(findings: Sequence[Finding]) -> dict[str, int]:
    """What reports say first: counts, the share that a command rewrites, and minutes of a person's work."""
    counts = Counter(f.safety for f in findings)
    return {
        "findings": len(findings),
        "files": len({f.path for f in findings}),
        **{safety: counts[safety] for safety in SAFETIES},
        "share_fixed_automatically": _percent(counts["safe"], len(findings)),
        "share_with_unsafe": _percent(counts["safe"] + counts["unsafe"], len(findings)),
        "manual_minutes": manual_minutes(findings),
    }


def summarise_port(done: PortResult) -> dict[str, int]:
    """The same of a port: what was rewritten, and what is left."""
    total = len(done.fixed) + len(done.left)
    return {
        "findings": total,
        "fixed": len(done.fixed),
        "left": len(done.left),
        "share_fixed_automatically": _percent(len(done.fixed), total),
        "manual_minutes": manual_minutes(done.left),
    }


def _percent(part: int, whole: int) -> int:
    """Rounded down, so that 100 means all."""
    return 100 * part // whole if whole else 100


def manual_minutes(findings: Sequence[Finding]) -> int:
    """A rough guess at the work that is left to a person."""
    return sum(_MINUTES_OF.get(f.code, _MINUTES[f.safety]) if f.safety == "manual" else 0 for f in findings)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def port_report(done: PortResult, wrote: bool) -> str:
    """What a port did, and what it leaves to a person."""
    lines = []
    for finding in done.left:
        lines.append(f"{finding.path}:{finding.line}:{finding.column}: {finding.code} {finding.message}")
        lines.append(
            f"    {finding.cure}{' [unsafe rewrite: --unsafe]' if finding.safety == 'unsafe' else ''}"
        )
    if lines:
        lines.append("")
    verb = "changed" if wrote else "would change"
    told = summarise_port(done)
    lines.append(
        f"{verb} {_count(len(done.changed), 'file')}: {told['fixed']} of {_count(told['findings'], 'finding')} fixed automatically "
        f"({told['share_fixed_automatically']} %), {told['left']} left; manual work left: about {told['manual_minutes']} minutes."
    )
    if not wrote and done.changed:
        lines.append("Nothing was written: --write edits in place, --out DIR writes a copy.")
    if done.not_ported:
        lines.append(
            f"Not ported, though imported: {_listed(done.not_ported)}. Name these too, or their folder."
        )
    if done.not_copied:
        lines.append(f"Not copied, too large or not readable: {_listed(done.not_copied)}.")
    return "\n".join(lines)


def _listed(names: Sequence[str], most: int = 8) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
