"""Findings as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

from portwright.port.finding import SAFETIES, Finding
from portwright.port.layout.dissolve import TAKEN_OVER
from portwright.port.layout.trial import Trial

if TYPE_CHECKING:
    from portwright.port.entries import CheckResult, Entry
    from portwright.port.request import PortResult
    from portwright.port.verdict import Verdict

NOT_TAKEN = "PW005"  # a loop that neither the target nor `port` takes over
_MANUAL_MINUTES = 10  # a rough guess for each finding
_MINUTES_OF = {
    "PW003": 60, "PW401": 60, "PW407": 120, "PW106": 45, "PW107": 60, "PW314": 45, "PW318": 90, "PW403": 15
}  # fmt: skip


def text_report(result: CheckResult) -> str:
    """Findings by file, each with its cure; then the summary."""
    marks = {"safe": " [safe rewrite]", "unsafe": " [unsafe rewrite]"}
    blocks = [_finding_lines(group, marks) for _, group in groupby(result.findings, key=lambda f: f.path)]
    return "\n".join([*chain.from_iterable(blocks), summary(result)])


def _finding_lines(findings: Iterable[Finding], marks: Mapping[str, str]) -> list[str]:
    """Each finding and its cure, with a mark for its safety, and an empty line behind them."""
    lines = []
    for f in findings:
        lines.append(f"{f.path}:{f.line}:{f.column}: {f.code} {f.message}")
        lines.append(f"    {f.cure}{marks.get(f.safety, '')}")
    return [*lines, ""] if lines else []


def summary(result: CheckResult) -> str:
    """The number of findings, and for each entry its files, the owner of its loop, and its verdicts."""
    totals = summarise(result.findings)
    kinds = ", ".join(f"{totals[s]} {s}" for s in SAFETIES if totals[s])
    if result.findings:
        lines = [f"{_count(totals['findings'], 'finding')} in {_count(totals['files'], 'file')}: {kinds}."]
    else:
        no_line = "The rules name no line here; the verdict says the rest."
        lines = ["No findings." if result.runs_as_it_is else no_line]
    return "\n".join([*lines, *(line for entry in result.entries for line in _about(entry))])


def _about(entry: Entry) -> list[str]:
    document = entry.as_dict()
    lines = [
        f"{document['path']}: looked at {_count(len(document['files']), 'file')}: {_listed(document['files'])}."
    ]
    lines += [
        f"  not followed: {row['import']} ({row['path']}:{row['line']}), {row['why']}"
        for row in document["not_followed"]
    ]
    owners = [f"{owner.name} ({place})" for owner, place in entry.look.owners]
    lines.append(f"  training loop: {', '.join(owners) or 'nobody found'}")
    return [*lines, *(f"  {verdict_line(verdict)}" for verdict in entry.verdicts)]


def verdict_line(verdict: Verdict) -> str:
    """csx: needs a person: why. What `port` does about it, and a rough guess at the rest."""
    text = f"{verdict.target}: {verdict.answer}"
    if verdict.reasons:
        text += f"{', because' if verdict.answer == 'cannot tell' else ':'} {'; '.join(verdict.reasons)}"
    if verdict.command:
        text += f"{'.' if verdict.reasons else ':'} `{verdict.command}`"
    if verdict.left is not None and verdict.fixed is not None and verdict.left:
        text += f" fixes {verdict.fixed} of {_count(verdict.fixed + verdict.left, 'finding')}"
    return text + (f"; manual work left: about {verdict.minutes} minutes" if verdict.minutes else "")


def summarise(findings: Sequence[Finding]) -> dict[str, int]:
    """Counts of findings, which reports show first."""
    counts = Counter(f.safety for f in findings)
    files = len({f.path for f in findings})
    return {"findings": len(findings), "files": files, **{safety: counts[safety] for safety in SAFETIES}}


def summarise_port(done: PortResult) -> dict[str, int | None]:
    """Counts of a port; without a share for a layout, and None for one that would say nothing of the script."""
    total = len(done.fixed) + len(done.left)
    totals: dict[str, int | None] = {"findings": total, "fixed": len(done.fixed), "left": len(done.left)}
    if done.style == "layout":
        return totals
    is_known = total > 0 and not any(f.code == NOT_TAKEN for f in done.left)
    share = 100 * len(done.fixed) // total if is_known else None  # rounded down, so that 100 means all
    return {
        **totals,
        "share_fixed_automatically": share,
        "manual_minutes": manual_minutes(done.left) if is_known else None,
    }


def manual_minutes(findings: Sequence[Finding]) -> int:
    """A rough guess at the work that is left to a person."""
    return sum(_MINUTES_OF.get(f.code, _MANUAL_MINUTES) for f in findings if f.safety == "manual")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def port_report(done: PortResult, wrote: bool) -> str:
    """What a port did, and what it leaves to a person."""
    lines = _finding_lines(done.left, {"unsafe": " [unsafe rewrite: --unsafe]"})
    if done.style == "layout":
        return "\n".join([*lines, *_layout_lines(done)])
    verb = "changed" if wrote else "would change"
    totals = summarise_port(done)
    line = f"{verb} {_count(len(done.changed), 'file')}: {len(done.fixed)} of {_count(len(done.fixed) + len(done.left), 'finding')} fixed automatically"
    if totals["manual_minutes"] is not None:
        line += f" ({totals['share_fixed_automatically']} %), {len(done.left)} left; manual work left: about {totals['manual_minutes']} minutes"
    lines.append(f"{line}.")
    if totals["findings"] == 0:
        lines.append("Whether it runs there is another question, which `portwright check` answers.")
    if not wrote and done.changed:
        lines.append("Nothing was written: --write edits in place, --out DIR writes a copy.")
    if done.not_ported:
        lines.append(
            f"Not ported, though imported: {_listed(done.not_ported)}. Name these too, or their folder."
        )
    if done.not_copied:
        lines.append(f"Not copied, too large or not readable: {_listed(done.not_copied)}.")
    return "\n".join(lines)


def _layout_lines(done: PortResult) -> list[str]:
    """The report of a layout: what it leaves out and whether it ran."""
    if not done.changed:
        return ["No layout: nothing was written."]
    by_reason: dict[str, list[str]] = {}
    for row in done.dissolved:
        if row["into"] not in TAKEN_OVER:
            place = f"{row['path'].rpartition('/')[2]}:{row['line']}"
            by_reason.setdefault(row["into"], []).append(f"{place} {row['statement'][:60]}")
    lines = ["Left out, and what does its work now:"] if by_reason else []
    lines += [f"  {reason}: {_listed(rows)}" for reason, rows in by_reason.items()]
    if done.literals:
        lines.append(f"Stay literals, which params.yaml and -D do not reach: {_listed(done.literals)}.")
    lines.append(
        f"Wrote {_count(len(done.changed), 'file')}: {_count(len(done.fixed), 'finding')} fixed, {len(done.left)} left."
    )
    match done.tried:
        case None:
            lines.append("The folder was not tried.")
        case Trial(outcome="ran"):
            lines.append(f"Ran one validate step of it on the CPU: {done.tried.words}.")
        case Trial(outcome="failed"):
            lines.append(f"The folder was written, but its validate step failed: {done.tried.words}")
        case _:
            lines.append(f"The folder was not tried: {done.tried.words}")
    return [_printable(line) for line in lines]


def _printable(text: str) -> str:
    """Escapes line breaks and terminal control characters in foreign text."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _listed(names: Sequence[str], most: int = 8) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
