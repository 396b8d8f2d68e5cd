"""Jobs of a Cerebras cluster that queues by itself: its command csctl, and what it prints."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from portwright.errors import UserError
from portwright.launch.findings import run_program

TIMEOUT_SECONDS = 60.0
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
# A cell is a word, with what belongs to it: "P2 (299)", "cs-1, cs-2".
_CELL = re.compile(r"\S+(?: \([^()]*\)|(?<=,) \S+)*")


@dataclass(frozen=True)
class ClusterJob:
    """A job of the cluster; a run makes several, one a compile and one an execution."""

    name: str  # wsjob-...
    kind: str
    phase: str  # QUEUED, RUNNING, SUCCEEDED, ...
    labels: str
    user: str = ""  # empty where the release does not tell

    @property
    def is_ended(self) -> bool:
        return self.phase in _ENDED


def list_jobs(label: str) -> list[ClusterJob]:
    """This user's cluster jobs with a label, such as `name=mymodel-3`, which other users' jobs may have too."""
    mine = {"", *_my_names()}
    listed = parse_jobs(_run(["csctl", "get", "jobs"]))
    return [job for job in listed if job.user in mine and label in re.split(r", ?", job.labels)]


def cancel_jobs(label: str) -> list[str]:
    """Ends the cluster's jobs with a label, and gives their names; after a failure the others are still ended."""
    ended: list[str] = []
    failed: dict[str, UserError] = {}
    for job in list_jobs(label):
        if job.is_ended:
            continue
        try:
            _run(["csctl", "cancel", "job", job.name])
            ended.append(job.name)
        except UserError as error:
            failed[job.name] = error
    # Many end by themselves when the first one does: what has ended meanwhile is no failure.
    left = {job.name for job in list_jobs(label) if not job.is_ended} if failed else {}
    reasons = [error.message for name, error in failed.items() if name in left]
    if reasons:
        before = f"ended {', '.join(ended)} on the cluster, but " if ended else ""
        raise UserError(
            before + " ".join(reasons), f"See 'csctl get jobs'; what runs is under the label {label}."
        )
    return ended


def _my_names() -> set[str]:
    """The names under which a cluster may list this user: the login name, or the number."""
    names = {str(os.getuid())}
    with suppress(KeyError, OSError):  # a number without a name, as in some containers
        names.add(getpass.getuser())
    return names


def parse_jobs(text: str) -> list[ClusterJob]:
    """Reads the table of `csctl get jobs`; columns are found by their headings, since releases differ in them."""
    lines = [line for line in text.splitlines() if line.strip()]
    heading = next((n for n, line in enumerate(lines) if re.search(r"\bNAME\b.*\bPHASE\b", line)), None)
    if heading is None:
        return []
    columns = [(found[0], found.start()) for found in re.finditer(r"\S+", lines[heading])]
    rows = [_read_row(line, columns) for line in lines[heading + 1 :]]
    return [
        ClusterJob(*(row.get(column, "") for column in ("NAME", "TYPE", "PHASE", "LABELS", "USER")))
        for row in rows
    ]


def _read_row(line: str, columns: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The cells of a line by their headings; empty ones are left out."""
    cells = list(_CELL.finditer(line))
    row: dict[str, str] = {}
    pushed = 0  # columns by which longer values have moved the later cells
    for number, (name, _) in enumerate(columns):
        following = columns[number + 1][1] if number + 1 < len(columns) else len(line) + 1
        own = []
        while cells and cells[0].start() < following + pushed:
            own.append(cells.pop(0))
        if own:
            row[name] = " ".join(cell[0] for cell in own)
            pushed = max(pushed, own[-1].end() + 1 - following)
    return row


def _run(words: Sequence[str]) -> str:
    answer, command = run_program(words, timeout_seconds=TIMEOUT_SECONDS), " ".join(words)
    if answer.status is None:
        raise UserError(
            f"the cluster cannot be asked '{command}': {answer.words}.",
            "Run this on a user node of the site.",
        )
    if not answer.is_good:
        said = " ".join((answer.err or answer.out).split())[:300]
        raise UserError(f"'{command}' failed with status {answer.status}: {said}.", "Mend what it names.")
    return answer.out
