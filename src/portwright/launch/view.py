"""A job at one moment, from its scheduler and its folders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from portwright.errors import PortwrightError
from portwright.launch.local import read_manifest
from portwright.launch.page_text import clean
from portwright.launch.progress import Progress, ProgressReader, as_plain, read_tail, read_time
from portwright.launch.queue_words import explain_reason, explain_status, explain_word
from portwright.launch.registry import Entry
from portwright.launch.slurm import SlurmState
from portwright.launch.times import seconds_of

Phase = Literal[
    "pending", "requeued", "running", "done", "failed", "cancelled", "lost", "not taken", "unknown"
]
ENDED: tuple[Phase, ...] = ("done", "failed", "cancelled", "lost", "not taken")
_NUM_LOG_LINES = 12
_LOG_TAIL_BYTES = 32 << 10
_MOST_CAUSES = 2

AskState = Callable[[Entry], SlurmState]


@dataclass(frozen=True)
class Asked:
    """The resources of a job, from its manifest."""

    partition: str | None = None
    minutes: int = 0
    grace_seconds: int = 0
    model_dir: str | None = None


@dataclass(frozen=True)
class View:
    """A job at one moment; `render` makes pages of it."""

    entry: Entry
    asked: Asked
    phase: Phase
    state: SlurmState | None  # None: the scheduler did not answer
    unanswered: str | None  # why it did not
    progress: Progress
    explanations: tuple[tuple[str, str], ...]  # causes found in the log of a failed job, with cures
    log_lines: tuple[str, ...]  # the last lines, of a failed job
    now: float

    @property
    def is_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def model_dir(self) -> str | None:
        return self.entry.model_dir or self.asked.model_dir

    @property
    def age_seconds(self) -> float | None:
        submitted = read_time(self.entry.submitted)
        return max(0.0, self.now - submitted) if submitted is not None else None

    @property
    def restarts(self) -> int:
        return max(self.progress.restarts, self.state.restarts if self.state else 0, 0)

    @property
    def is_training(self) -> bool:
        """Whether a training runs that has logged something since its last start."""
        training, began = self.progress.training, self.progress.time
        if self.phase != "running" or training is None or self.progress.step not in (None, "train"):
            return False
        return began is None or training.logged is None or training.logged >= began

    @property
    def training_seconds_left(self) -> float | None:
        """Seconds until a running training is done."""
        training = self.progress.training
        return training.seconds_left(self.now) if training is not None and self.is_training else None

    @property
    def limit_seconds_left(self) -> int | None:
        """Seconds until the scheduler's time limit."""
        return seconds_of(self.state.time_left) if self.state and self.phase == "running" else None

    @property
    def num_more_requeues(self) -> int | None:
        """How often the time limit will requeue the training before it is done; None: not known."""
        training, limit = self.training_seconds_left, self.limit_seconds_left
        if training is None or limit is None:
            return None
        over = training - max(0, limit - self.asked.grace_seconds)
        if over <= 0:
            return 0
        each = self.asked.minutes * 60 - self.asked.grace_seconds
        return math.ceil(over / each) if each > 0 else None

    @property
    def why_failed(self) -> str:
        """The cause in words: the scheduler's reason for the end, and the meaning of the status."""
        status = self.state.exit if self.state and self.state.exit else self.progress.status
        status = status if status else self.entry.status
        words = explain_word(self.state.word) if self.state else ""
        if not words and self.state and self.state.reason and self.state.word == "":
            words = self.state.reason  # a sentence of the local supervisor's
        words = words or self.entry.reason  # as noted at the end
        told = explain_status(status) if status else ""
        where = f"step {self.progress.step}" if self.progress.step else ""
        return "; ".join(part for part in (where, words, told) if part) or "nobody says why"

    def as_json(self) -> dict[str, Any]:
        waits = self.state is not None and self.phase in ("pending", "requeued")
        reason = explain_reason(self.state.reason) if self.state is not None and waits else None
        return {
            **as_plain(self.entry),
            "folder": str(self.entry.folder),
            "model_dir": self.model_dir,
            "state": self.phase,
            "scheduler_state": as_plain(self.state),
            "unanswered": self.unanswered,
            "reason": reason.words if reason else None,
            "why_failed": self.why_failed if self.phase in ("failed", "lost") else None,
            "explanations": [{"what": what, "cure": cure} for what, cure in self.explanations],
            "age_seconds": self.age_seconds,
            "training_seconds_left": self.training_seconds_left,
            "limit_seconds_left": self.limit_seconds_left,
            "num_more_requeues": self.num_more_requeues,
            "progress": self.progress.as_json(),
        }


class Looker:
    """Makes views of one job; an error of `ask_state` becomes part of the view."""

    def __init__(
        self,
        entry: Entry,
        ask_state: AskState,
        clock: Callable[[], float] = time.time,
        *,
        is_brief: bool = False,
    ) -> None:
        self.entry, self._ask_state, self._clock = entry, ask_state, clock
        self._asked = read_asked(entry.folder)
        model_dir = entry.model_dir or self._asked.model_dir
        self._reader = ProgressReader(entry.folder, Path(model_dir) if model_dir else None, is_brief=is_brief)
        self._is_brief = is_brief
        self._explained: tuple[int, tuple[tuple[str, str], ...]] = (-1, ())  # size of the log, its causes
        self.state: SlurmState | None = None
        self.unanswered: str | None = None
        self._asked_at: float | None = None

    def ask(self) -> None:
        """Asks the scheduler; where it does not answer, its last answer stays."""
        if self.entry.ended or not self.entry.was_taken:
            return
        asked_at = self._clock()
        try:
            self.state, self.unanswered = self._ask_state(self.entry), None
            self._asked_at = asked_at
        except PortwrightError as error:
            self.unanswered = error.message

    def look(self) -> View:
        """Reads the job's folders, and makes a view with the scheduler's last answer."""
        progress = self._reader.read()
        phase = find_phase(self.entry, self.state, progress, self._asked_at)
        has_failed = phase in ("failed", "lost") and not self._is_brief
        log = self.entry.folder / "log.txt"
        return View(
            entry=self.entry,
            asked=self._asked,
            phase=phase,
            state=self.state,
            unanswered=self.unanswered,
            progress=progress,
            explanations=self._explain(log) if has_failed else (),
            log_lines=_last_lines(log) if has_failed else (),
            now=self._clock(),
        )

    def _explain(self, log: Path) -> tuple[tuple[str, str], ...]:
        size = log.stat().st_size if log.is_file() else 0
        if size != self._explained[0]:
            self._explained = (size, _explain(log) if size else ())
        return self._explained[1]


def find_phase(
    entry: Entry, state: SlurmState | None, progress: Progress, asked_at: float | None = None
) -> Phase:
    """The phase of a job; the scheduler knows whether it runs, the job's own files how it ended.

    The files go before an older answer of the scheduler's.
    """
    if not entry.was_taken:
        return "not taken"
    ended = _ending(entry.ended)
    if ended is not None:
        return ended
    written, ended = progress.state, _ending(progress.state)
    on_its_way: Phase | None = (
        "running" if written == "running" else "requeued" if written == "requeued" else None
    )
    is_newer = asked_at is not None and progress.time is not None and progress.time >= asked_at
    if is_newer and (newer := ended or on_its_way):
        return newer
    if state is None or state.state == "unknown":
        return ended or ("lost" if state is not None else on_its_way or "unknown")
    if state.state == "pending":
        return "requeued" if state.restarts or progress.attempts or written is not None else "pending"
    if state.state == "running":
        # The script writes its end a moment before the scheduler sees it.
        if written == "requeued":
            return "requeued"
        return ended if ended is not None and state.word == "COMPLETING" else "running"
    return state.state


def _ending(word: str | None) -> Phase | None:
    return next((phase for phase in ("done", "failed", "cancelled") if phase == word), None)


def read_asked(folder: Path) -> Asked:
    """Reads a job's resources from its manifest; empty where it cannot be read."""
    manifest = read_manifest(folder)
    resources = manifest.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    texts = [
        x if isinstance(x, str) and x else None
        for x in (resources.get("partition"), manifest.get("model_dir"))
    ]
    numbers = [x if type(x) is int and x > 0 else 0 for x in map(resources.get, ("minutes", "grace_seconds"))]
    return Asked(texts[0], numbers[0], numbers[1], texts[1])


def _last_lines(log: Path) -> tuple[str, ...]:
    text = read_tail(log, _LOG_TAIL_BYTES, []).decode("utf-8", errors="replace")
    lines = [clean(line) for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-_NUM_LOG_LINES:]


def _explain(log: Path) -> tuple[tuple[str, str], ...]:
    """The first causes of the last failed step in the log, each with its cure."""
    from portwright.launch.explain import explain_log

    try:
        errors = [found for found in explain_log(log) if found.level == "error"]
    except PortwrightError:  # no readable log
        return ()
    last = [found for found in errors if (found.step, found.attempt) == (errors[-1].step, errors[-1].attempt)]
    return tuple(
        (f"{found.meaning.rstrip('.')} (line {found.line})", found.cure) for found in last[:_MOST_CAUSES]
    )
