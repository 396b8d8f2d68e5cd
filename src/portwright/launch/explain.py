"""Why a job failed, from its log: what is known of the lines in it, the first cause first."""

from __future__ import annotations

import io
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from portwright.errors import UserError
from portwright.launch.log_errors import KnownError, load_errors
from portwright.launch.log_scan import Hit, LogScan

_MOST_REGIONS = 500  # steps' runs that are told apart; a log with more is not of a job
_MOST_FOLLOWERS = 20  # lines that are shown under a cause
_TRACEBACK_LINES = 2000  # an exception's own line comes at most so far below 'Traceback'


@dataclass(frozen=True)
class Follower:
    """A line that came of a cause."""

    line: int
    text: str


@dataclass(frozen=True)
class Explanation:
    """One thing that went wrong (or, as a note, that is worth knowing), at its first line."""

    name: str
    level: Literal["error", "note"]
    line: int
    text: str
    meaning: str
    cure: str
    source: str
    count: int  # lines that say so
    is_first: bool  # the first cause of its step's run; others there may have come of it
    step: str = ""  # of the job, where the log names steps
    attempt: int = 0  # of that step, from 1; 0: the log does not tell
    followers: tuple[Follower, ...] = ()
    num_followers: int = 0  # with those that are not listed


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
    count: int = 1


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
    """What is known of the lines of a log file, the first cause first; empty where nothing is."""
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


def explain_text(text: str) -> list[Explanation]:
    """The same for what a program has just printed."""
    return list(scan_log(io.BytesIO(text.encode("utf-8", errors="replace"))).explanations)


def scan_log(file: BinaryIO) -> LogReport:
    """Reads a log from a stream, once and in constant memory."""
    errors = load_errors()
    undoing = {error.undone_by: error.name for error in errors if error.undone_by is not None}
    hidden = tuple(_undoer(text) for text in undoing)
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


def _undoer(text: str) -> KnownError:
    return KnownError(f"undone by {text}", "hidden", (text,), None, "", "", "", ())


def _take(region: _Region, hit: Hit) -> bool:
    error = hit.error
    if error.kind == "hidden":
        region.traceback_line = hit.line
        return False
    if error.within is not None and hit.line - region.traceback_line > _TRACEBACK_LINES:
        return False
    record = region.records.setdefault(error.name, _Record(hit, 0))
    record.count += 1
    if error.kind == "symptom":
        region.num_symptoms += 1
        if len(region.symptoms) < _MOST_FOLLOWERS:
            region.symptoms.append(Follower(hit.line, hit.text))
        elif region.symptoms[-1].line < hit.line:
            region.symptoms[-1] = Follower(
                hit.line, hit.text
            )  # the last one is worth more than one in the middle
    return True


def _explain(region: _Region, *, is_overcome: bool) -> list[Explanation]:
    """The causes of a region in their order, with its symptoms under the first; without a cause, an event that tells
    why it ended; without that, the symptom that says most."""
    by_kind: dict[str, list[_Record]] = {}
    for record in sorted(region.records.values(), key=lambda record: record.hit.line):
        by_kind.setdefault(record.hit.error.kind, []).append(record)
    causes, events, symptoms = (by_kind.get(kind, []) for kind in ("cause", "event", "symptom"))
    told = causes or events[:1]
    if not told and symptoms:
        told = [_first_symptom(symptoms)]
    explanations = []
    for number, record in enumerate(told):
        is_error = record.hit.error.kind != "event" and not is_overcome
        folded = region.symptoms if number == 0 else []
        own = record.hit.line if record.hit.error.kind == "symptom" else 0
        followers = tuple(follower for follower in folded if follower.line != own)
        explanations.append(
            _explanation(
                record,
                region,
                "error" if is_error else "note",
                is_first=number == 0,
                followers=followers,
                num_followers=region.num_symptoms - bool(own) if number == 0 else 0,
            )
        )
    explanations += [
        _explanation(record, region, "note", is_first=False, followers=(), num_followers=0)
        for record in by_kind.get("note", [])
    ]
    return explanations


def _first_symptom(symptoms: list[_Record]) -> _Record:
    """What a task said itself goes before how it ended, and that before what was done to the other tasks."""
    said = ("error-line", "python-exception", "container-failed", "slurm-submission-refused")
    others = (
        "slurm-step-cancelled",
        "task-terminated",
        "peer-gone",
        "collective-timeout",
        "child-failed",
        "job-step-failed",
    )

    def rank(record: _Record) -> tuple[int, int]:
        name = record.hit.error.name
        return (0 if name in said else 2 if name in others else 1, record.hit.line)

    return min(symptoms, key=rank)


def _explanation(
    record: _Record,
    region: _Region,
    level: Literal["error", "note"],
    *,
    is_first: bool,
    followers: tuple[Follower, ...],
    num_followers: int,
) -> Explanation:
    hit, error = record.hit, record.hit.error
    return Explanation(
        name=error.name,
        level=level,
        line=hit.line,
        text=hit.text,
        meaning=_fill(error.meaning, hit.groups),
        cure=_fill(error.cure, hit.groups),
        source=error.source,
        count=record.count,
        is_first=is_first,
        step=region.step,
        attempt=region.attempt,
        followers=followers,
        num_followers=num_followers,
    )


def _fill(sentence: str, groups: dict[str, str]) -> str:
    """Puts what the pattern matched into a sentence, and takes out the gaps of what it did not."""
    filled = re.sub(r"\{(\w+)\}", lambda found: groups.get(found[1], found[0]).strip(), sentence)
    filled = re.sub(r"\s+([).,:])", r"\1", re.sub(r" {2,}", " ", filled)).replace("( ", "(").strip()
    filled = filled.rstrip(": ")
    return filled if filled.endswith((".", "!", "?")) else f"{filled}."
