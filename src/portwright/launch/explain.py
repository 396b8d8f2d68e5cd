"""Why a job failed, from its log: explanations of known lines, the first cause first, and the report of `explain-log`."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from portwright.errors import UserError
from portwright.launch.log_scan import Hit, KnownError, LogScan, load_errors

_MOST_REGIONS = 500  # runs of steps; a log with more is no job's
_MOST_FOLLOWERS = 20  # lines that are shown under a cause
_TRACEBACK_LINES = 2000  # an exception's own line comes at most so far below 'Traceback'


@dataclass(frozen=True)
class Follower:
    """A line that followed from a cause."""

    line: int
    text: str


@dataclass(frozen=True)
class Explanation:
    """One failure (or, as a note, something worth knowing), at its first line."""

    name: str
    level: Literal["error", "note"]
    line: int
    text: str
    meaning: str
    cure: str
    source: str
    count: int  # lines with this failure
    is_first: bool  # the first cause in its run of the step; later ones may follow from it
    step: str = ""  # of the job, where the log names steps
    attempt: int = 0  # of that step, from 1; 0: the log does not tell
    followers: tuple[Follower, ...] = ()
    num_followers: int = 0  # also those not listed


@dataclass(frozen=True)
class LogReport:
    """What a log says."""

    explanations: tuple[Explanation, ...]
    tail: tuple[str, ...]
    num_lines: int
    is_done: bool  # the job ended well in the end

    @property
    def has_errors(self) -> bool:
        return any(found.level == "error" for found in self.explanations)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "has_errors": self.has_errors}


@dataclass
class _Record:
    hit: Hit
    count: int = 0


@dataclass
class _Region:
    """What was found while one step ran; a log without steps is one region."""

    step: str = ""
    attempt: int = 0
    records: dict[str, _Record] = field(default_factory=dict)
    symptoms: list[Follower] = field(default_factory=list)
    num_symptoms: int = 0
    traceback_line: int = -_TRACEBACK_LINES
    ended_well: bool = False


def explain_log(path: Path | str) -> list[Explanation]:
    """Explanations of the known lines of a log file, the first cause first; empty without such lines."""
    return list(read_log(path).explanations)


def read_log(path: Path | str) -> LogReport:
    """Reads a log file of any size."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return scan_log(file)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"cannot read '{path}': {reason}.", "Give a job, a log file, or - for stdin."
        ) from error


def errors_by_run(explanations: Sequence[Explanation]) -> tuple[list[Explanation], list[Explanation]]:
    """The errors of the last run of a step that failed, and those of the runs before it."""
    errors = [found for found in explanations if found.level == "error"]
    runs = [(found.step, found.attempt) for found in errors]
    last = [found for found, run in zip(errors, runs, strict=True) if run == runs[-1]]
    return last, [found for found in errors if found not in last]


def explain_text(text: str) -> list[Explanation]:
    """The same for the output of a program."""
    return list(scan_log(io.BytesIO(text.encode("utf-8", errors="replace"))).explanations)


def scan_log(file: BinaryIO) -> LogReport:
    """Reads a log from a stream, once and in constant memory."""
    errors = load_errors()
    undoing = {error.undone_by: error.name for error in errors if error.undone_by is not None}
    # These find lines which say that an earlier error is overcome.
    hidden = tuple(
        KnownError(f"undone by {text}", "hidden", (text,), None, "", "", "", ()) for text in undoing
    )
    scan = LogScan(file, (*hidden, *errors))
    regions, attempts, is_done = [_Region()], dict[str, int](), False
    for hit in scan.hits():
        kind = hit.error.kind
        if kind == "region":
            step = hit.groups["step"]
            attempts[step] = attempts.get(step, 0) + 1
            if len(regions) < _MOST_REGIONS:
                regions.append(_Region(step, attempts[step]))
            is_done = False
        elif kind == "done":
            is_done = True
        elif kind == "well":
            regions[-1].ended_well = True
        elif hit.error in hidden:
            regions[-1].records.pop(undoing[hit.error.hints[0]], None)
        elif _take(regions[-1], hit) and kind == "cause":
            is_done = False
    found = [
        told for region in regions for told in _explain(region, is_overcome=is_done or region.ended_well)
    ]
    return LogReport(tuple(found), tuple(scan.tail()), scan.num_lines, is_done)


def _take(region: _Region, hit: Hit) -> bool:
    error = hit.error
    if error.kind == "hidden":
        region.traceback_line = hit.line
        return False
    if error.within is not None and hit.line - region.traceback_line > _TRACEBACK_LINES:
        return False
    record = region.records.setdefault(error.name, _Record(hit))
    record.count += 1
    if error.kind == "symptom":
        region.num_symptoms += 1
        if len(region.symptoms) < _MOST_FOLLOWERS:
            region.symptoms.append(Follower(hit.line, hit.text))
        elif region.symptoms[-1].line < hit.line:
            # The last one is worth more than one in the middle.
            region.symptoms[-1] = Follower(hit.line, hit.text)
    return True


def _explain(region: _Region, *, is_overcome: bool) -> list[Explanation]:
    """The causes of a region in their order, with its symptoms under the first; without a cause, an event that tells
    why it ended; without that, the symptom that says most."""
    by_kind: dict[str, list[_Record]] = {}
    for record in sorted(region.records.values(), key=lambda record: record.hit.line):
        by_kind.setdefault(record.hit.error.kind, []).append(record)
    causes, events, symptoms, notes = (
        by_kind.get(kind, []) for kind in ("cause", "event", "symptom", "note")
    )
    told = causes or events[:1]
    if not told and symptoms:
        told = [_first_symptom(symptoms)]
    explanations = []
    for number, record in enumerate([*told, *notes]):
        hit, error = record.hit, record.hit.error
        is_first = number == 0 and bool(told)
        own = hit.line if error.kind == "symptom" else 0
        followers = region.symptoms if is_first else []
        explanation = Explanation(
            name=error.name,
            level="note" if is_overcome or error.kind in ("event", "note") else "error",
            line=hit.line,
            text=hit.text,
            meaning=_fill(error.meaning, hit.groups),
            cure=_fill(error.cure, hit.groups),
            source=error.source,
            count=record.count,
            is_first=is_first,
            step=region.step,
            attempt=region.attempt,
            followers=tuple(follower for follower in followers if follower.line != own),
            num_followers=region.num_symptoms - bool(own) if is_first else 0,
        )
        explanations.append(explanation)
    return explanations


def _first_symptom(symptoms: list[_Record]) -> _Record:
    """A message of a task itself goes before its exit, and that before the end of the other tasks."""
    said = ("error-line", "python-exception", "container-failed", "slurm-submission-refused")
    others = (
        *("slurm-step-cancelled", "task-terminated", "peer-gone", "collective-timeout"),
        *("child-failed", "job-step-failed"),
    )

    def rank(record: _Record) -> tuple[int, int]:
        name = record.hit.error.name
        return (0 if name in said else 2 if name in others else 1, record.hit.line)

    return min(symptoms, key=rank)


def _fill(sentence: str, groups: dict[str, str]) -> str:
    """Puts the pattern's groups into a sentence; placeholders without a match are removed."""
    filled = re.sub(r"\{(\w+)\}", lambda found: groups.get(found[1], found[0]).strip(), sentence)
    filled = re.sub(r"\s+([).,:])", r"\1", re.sub(r" {2,}", " ", filled)).replace("( ", "(").strip()
    filled = filled.rstrip(": ")
    return filled if filled.endswith((".", "!", "?")) else f"{filled}."


LOG_FILE = "log.txt"
_SHOWN_FOLLOWERS = 3


def find_log(text: str) -> Path:
    """The log that `text` names: a file, or the log of a job."""
    path = Path(text).expanduser()
    try:
        if path.is_file() or path.is_fifo():
            return path
        if path.joinpath(LOG_FILE).is_file():
            return path / LOG_FILE
    except OSError as error:  # a name that is too long
        raise UserError(
            f"'{text[:200]}' is no path: {error.strerror}.", "Give a job, a log file, or -."
        ) from error
    from portwright.launch.registry import find_entry

    try:
        entry = find_entry(text)
    except UserError as error:
        raise UserError(f"'{text}' is neither a file nor a job: {error.message}", error.cure) from error
    found = entry.folder / LOG_FILE
    if not found.is_file():
        raise UserError(
            f"the job {entry.name} has no log yet ({found}).",
            "It has not begun, or its folder was removed; see 'portwright jobs'.",
        )
    return found


def write_report(report: LogReport, name: str) -> str:
    """The report for a person: why the job ended, then earlier failures, then notes."""
    final, earlier = errors_by_run(report.explanations)
    notes = [found for found in report.explanations if found.level == "note"]
    counted = f"{name}: {report.num_lines} line{'s' * (report.num_lines != 1)}"
    lines: list[str] = []
    if final:
        lines += [f"{counted}. What went wrong{_where(final[0])}:", *_full_lines(final[0])]
        if final[1:]:
            lines += ["", "Said after it, and perhaps because of it:", *_brief_lines(final[1:])]
        if earlier:
            lines += ["", "In runs before that:", *_brief_lines(earlier)]
    elif report.is_done:
        lines += [f"{counted}. All steps of the job ended well."]
    elif not report.num_lines:
        lines += [f"{name} is empty: the job has written nothing."]
        lines += ["Look whether it has begun ('portwright jobs'), and whether its log is another file."]
    else:
        lines += [
            f"{counted}. Nothing in it is known as an error.",
            "Look at the last lines, and upwards from them for the first that says error, failed or Traceback:",
            *(f"  {text}" for text in report.tail),
        ]
    if notes:
        lines += ["", "Worth knowing:", *_brief_lines(notes)]
    return "\n".join(lines)


def _full_lines(found: Explanation) -> list[str]:
    lines = [
        f"  line {found.line}: {found.text}" + (f"  ({found.count} such lines)" if found.count > 1 else ""),
        f"  {found.meaning}",
        f"  Cure: {found.cure}",
        f"  Known from: {found.source}",
    ]
    if found.followers:
        shown = found.followers[:_SHOWN_FOLLOWERS]
        more = found.num_followers - len(shown)
        lines.append("  What came of it, or with it:")
        lines += [f"    line {follower.line}: {follower.text}" for follower in shown]
        lines += [f"    and {more} more"] if more > 0 else []
    return lines


def _brief_lines(explanations: list[Explanation]) -> list[str]:
    lines = []
    for found in explanations:
        lines.append(f"  line {found.line}{_where(found)}: {found.text}")
        lines.append(f"    {found.meaning} {found.cure}")
    return lines


def _where(found: Explanation) -> str:
    if not found.step:
        return ""
    return f" in {found.step}" + (f", attempt {found.attempt}" if found.attempt > 1 else "")
