"""Jobs of a Cerebras cluster that queues by itself: its command csctl, and what it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from portwright.errors import UserError
from portwright.launch.programs import call_program

TIMEOUT_SECONDS = 60.0
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class ClusterJob:
    """A job of the cluster; a run makes several, one a compile and one an execution."""

    name: str  # wsjob-...
    kind: str
    phase: str  # QUEUED, RUNNING, SUCCEEDED, ...
    labels: str

    @property
    def is_ended(self) -> bool:
        return self.phase in _ENDED


def list_jobs(label: str) -> list[ClusterJob]:
    """The cluster's jobs that have this label, such as `name=mymodel-3`."""
    done = _run(["csctl", "get", "jobs"])
    return [job for job in parse_jobs(done) if label in job.labels.split(",")]


def cancel_jobs(label: str) -> list[str]:
    """Ends the cluster's jobs that have this label, and gives their names."""
    ended = []
    for job in list_jobs(label):
        if not job.is_ended:
            _run(["csctl", "cancel", "job", job.name])
            ended.append(job.name)
    return ended


def parse_jobs(text: str) -> list[ClusterJob]:
    """Reads the table of `csctl get jobs`; columns are found by their headings, since releases differ in them."""
    lines = [line for line in text.splitlines() if line.strip()]
    heading = next((n for n, line in enumerate(lines) if re.search(r"\bNAME\b.*\bPHASE\b", line)), None)
    if heading is None:
        return []
    begins = {found[0]: found.start() for found in re.finditer(r"\S+", lines[heading])}
    order = sorted(begins.values())

    def cell(line: str, column: str) -> str:
        if column not in begins:
            return ""
        start = begins[column]
        end = next((each for each in order if each > start), len(line))
        # A value longer than its column pushes the others: then words count, not places.
        return line[start:end].strip()

    return [
        ClusterJob(cell(line, "NAME"), cell(line, "TYPE"), cell(line, "PHASE"), cell(line, "LABELS"))
        for line in lines[heading + 1 :]
    ]


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
