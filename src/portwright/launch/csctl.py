"""Jobs of a Cerebras cluster that queues by itself: its command csctl, and what it prints."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from portwright.errors import UserError
from portwright.launch.programs import call_program

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
    """This user's jobs of the cluster that have this label, such as `name=mymodel-3`; another's may have it, too."""
    mine = {"", *_my_names()}
    listed = parse_jobs(_run(["csctl", "get", "jobs"]))
    return [job for job in listed if job.user in mine and label in re.split(r", ?", job.labels)]


def cancel_jobs(label: str) -> list[str]:
    """Ends the cluster's jobs that have this label, and gives their names; one that fails does not spare the others."""
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
    if failed:
        _tell_failures(label, ended, failed)
    return ended


def _tell_failures(label: str, ended: Sequence[str], failed: Mapping[str, UserError]) -> None:
    """Raises what went wrong with jobs that have still not ended; many end by themselves when the first one does."""
    left = {job.name for job in list_jobs(label) if not job.is_ended}
    reasons = [error.message for name, error in failed.items() if name in left]
    if reasons:
        before = f"ended {', '.join(ended)} on the cluster, but " if ended else ""
        raise UserError(
            before + " ".join(reasons), f"See 'csctl get jobs'; what runs is under the label {label}."
        )


def _my_names() -> set[str]:
    """What a cluster may call this user: the login's name, or the number."""
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
    pushed = 0  # how far a value that is longer than its column has moved those after it
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
    if shutil.which(words[0]) is None:
        raise UserError(
            "there is no csctl here, so the cluster cannot be asked.", "Run this on a user node of the site."
        )
    try:
        done = call_program(words, TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"the cluster did not answer '{' '.join(words)}' within {TIMEOUT_SECONDS:.0f} s.", "Try again."
        ) from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise UserError(
            f"'{' '.join(words)}' failed with status {done.returncode}: {said}.", "Mend what it names."
        )
    return done.stdout
