"""What checks before the queue find, and how they ask programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from portwright.launch.programs import call_program
from portwright.launch.slurm import plain_environment

TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True)
class Finding:
    """One result of a check: an error stops the submission, a note is only worth knowing."""

    level: Literal["error", "warning", "note"]
    what: str  # with the value received
    cure: str


@dataclass(frozen=True)
class Answer:
    """What a program said; `status` is None where it is not on this machine, cannot be started or did not answer in time."""

    status: int | None
    out: str = ""
    err: str = ""

    @property
    def is_good(self) -> bool:
        return self.status == 0

    @property
    def words(self) -> str:
        """What it said last, on one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else ""


class Run(Protocol):
    """Calls a program; tests answer in its place."""

    def __call__(self, words: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer: ...


def run_program(words: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
    """Calls a program without SLURM's variables of an allocation that this shell may sit in."""
    if shutil.which(words[0]) is None:
        return Answer(None, err=f"there is no program {words[0]} here")
    try:
        done = call_program(words, timeout_seconds, env=plain_environment())
    except subprocess.TimeoutExpired:
        return Answer(None, err=f"{words[0]} did not answer within {timeout_seconds:.0f} s")
    except OSError as error:
        return Answer(None, err=f"{words[0]} cannot be started: {error}")
    return Answer(done.returncode, done.stdout, done.stderr)
