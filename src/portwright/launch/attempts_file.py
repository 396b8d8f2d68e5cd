"""The attempts of a job, as its script notes them: when one ended, why, and which checkpoint it had reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
_SIGNALS = {"6": "an abort", "7": "a bus error", "9": "a kill", "11": "a memory fault", "15": "a termination"}


@dataclass(frozen=True)
class Attempt:
    """One line of the file."""

    time: str
    why: str  # as the script wrote it, such as requeue:signal or retry:137
    checkpoint_step: int | None
    step: str = ""  # of the chain

    @property
    def moment(self) -> str:
        """When, to the minute, as the script wrote it."""
        return re.sub(r"^(\d+-\d+-\d+)T(\d+:\d+):\d+Z$", r"\1 \2 UTC", self.time)

    @property
    def words(self) -> str:
        """Why it ended, for a person."""
        kind, _, detail = self.why.partition(":")
        if kind == "requeue":
            return _REQUEUES.get(detail, f"requeued ({detail})" if detail else "requeued")
        if kind == "retry":
            return f"tried again after {_status_words(detail)}"
        if kind == "node":
            return "the node was lost"
        return self.why


_REQUEUES = {
    "signal": "saved before the time limit and requeued",
    "85": "told to end, saved and requeued",
    "timeout": "reached the time limit and requeued",
    "preempted": "preempted and requeued",
    "slurm": "requeued by SLURM",
}


def read_attempts(path: Path, notes: list[str]) -> tuple[Attempt, ...]:
    """The attempts that ended; none where there is no such file."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}.")
        return ()
    attempts, is_damaged = [], False
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and _TIME.match(words[0]):
            step = words[2] if len(words) > 2 else ""
            attempts.append(
                Attempt(words[0], words[1], int(step) if step.isdecimal() else None, "".join(words[3:4]))
            )
        elif words:
            is_damaged = True
    if is_damaged:
        notes.append(f"{path.name} is damaged: some of its lines are left out.")
    return tuple(attempts)


def _status_words(status: str) -> str:
    if status.isdecimal() and 128 < int(status) <= 192:
        number = str(int(status) - 128)
        return _SIGNALS.get(number, f"signal {number}") + f" (status {status})"
    return f"status {status}" if status else "a failure"
