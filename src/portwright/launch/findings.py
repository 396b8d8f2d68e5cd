"""The findings of checks before submission, and calls of a site's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True)
class Finding:
    """One result of a check: an error stops the submission, a note is only worth knowing."""

    level: Literal["error", "warning", "note"]
    what: str  # contains the value received
    cure: str


def refusal(what: str, cure: str) -> Finding:
    return Finding("error", what, cure)


def warning(what: str, cure: str) -> Finding:
    return Finding("warning", what, cure)


def note(what: str, cure: str = "") -> Finding:
    return Finding("note", what, cure)


@dataclass(frozen=True)
class Answer:
    """The result of a program; `status` is None where it is not installed, cannot be started or did not answer in time."""

    status: int | None
    out: str = ""
    err: str = ""
    is_late: bool = False  # did not answer in time

    @property
    def is_good(self) -> bool:
        return self.status == 0

    @property
    def words(self) -> str:
        """Its last output, on one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else ""


class Run(Protocol):
    """Calls a program; tests pass a replacement."""

    def __call__(self, words: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer: ...


def run_program(
    words: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS, cwd: Path | None = None
) -> Answer:
    """Calls a program without SLURM's variables of an allocation that this shell may sit in."""
    if shutil.which(words[0]) is None:
        return Answer(None, err=f"there is no program {words[0]} here")
    try:
        done = subprocess.run(
            list(words),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=cwd,
            env=plain_environment(),
        )
    except subprocess.TimeoutExpired:
        return Answer(None, err=f"{words[0]} did not answer within {timeout_seconds:.0f} s", is_late=True)
    except OSError as error:
        return Answer(None, err=f"{words[0]} cannot be started: {error}")
    return Answer(done.returncode, done.stdout, done.stderr)


def plain_environment() -> dict[str, str]:
    """This process's environment without variables that change what SLURM's commands do.

    SBATCH_PARTITION and the like override a script, and SLURM_NTASKS of an allocation that this shell is in
    would apply to the next job.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept
        or not name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SRUN_"))
    }
