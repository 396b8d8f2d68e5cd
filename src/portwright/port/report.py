"""Findings as text, for a person at a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from portwright.port.finding import SAFETIES, Finding

if TYPE_CHECKING:
    from portwright.port.api import PortResult

_MINUTES = {"safe": 0, "unsafe": 2, "manual": 10}  # a rough guess a finding, for planning
_MINUTES_OF = {"PW401": 60, "PW407": 120, "PW106": 45, "PW107": 60, "PW314": 45, "PW318": 90, "PW403": 15}


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
    """One line: how many, in how many files, what a command can do about them, and what it leaves."""
    if not findings:
        return "No findings."
    counts = Counter(f.safety for f in findings)
    files = len({f.path for f in findings})
    parts = ", ".join(f"{counts[s]} {s}" for s in SAFETIES if counts[s])
    share = round(100 * (counts["safe"] + counts["unsafe"]) / len(findings))
    return (
        f"{_count(len(findings), 'finding')} in {_count(files, 'file')}: {parts}. `portwright port` rewrites the safe ones, and with "
        f"--unsafe {share} % of all; the rest is about {manual_minutes(findings)} minutes by hand."
    )


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
    total = len(done.fixed) + len(done.left)
    share = round(100 * len(done.fixed) / total) if total else 100
    lines.append(
        f"{verb} {_count(len(done.changed), 'file')}: {len(done.fixed)} of {_count(total, 'finding')} rewritten ({share} %), "
        f"{len(done.left)} left, about {manual_minutes(done.left)} minutes by hand."
    )
    if not wrote and done.changed:
        lines.append("Nothing was written: --write edits in place, --out DIR writes a copy.")
    if done.not_ported:
        lines.append(
            f"Not ported, though imported: {_listed(done.not_ported)}. Name these too, or their folder."
        )
    if done.not_copied:
        lines.append(f"Too large to copy: {_listed(done.not_copied)}.")
    return "\n".join(lines)


def _listed(names: Sequence[str], most: int = 8) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
