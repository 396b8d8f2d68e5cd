"""A job at one moment, from its scheduler and its folders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from portwright.errors import PortwrightError
from portwright.launch.local import read_manifest
from portwright.launch.page_text import clean
from portwright.launch.progress import Progress, ProgressReader, read_tail, read_time
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
class View:
    """A job at one moment; `render` makes pages of it."""

    entry: Entry
    asked: Mapping[str, Any]  # the resources of the job, as in its manifest
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
        return self.entry.model_dir or None

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
        grace = self.asked.get("grace_seconds") or 0
        over = training - max(0, limit - grace)
        if over <= 0:
            return 0
        each = (self.asked.get("minutes") or 0) * 60 - grace
        return math.ceil(over / each) if each > 0 else None

    @property
    def why_failed(self) -> str:
        """The cause in words: the scheduler's reason for the end, and the meaning of the status."""
        state = self.state or SlurmState("unknown")
        status = state.exit or self.progress.status or self.entry.status
        # Without a word of SLURM's the reason is a sentence of the local supervisor's.
        words = explain_word(state.word) if state.word else state.reason
        told = explain_status(status) if status else ""
        where = f"step {self.progress.step}" if self.progress.step else ""
        parts = (where, words or self.entry.reason, told)
        return "; ".join(filter(None, parts)) or "nobody says why"

    def as_json(self) -> dict[str, Any]:
        waits = self.state is not None and self.phase in ("pending", "requeued")
        reason = explain_reason(self.state.reason) if self.state is not None and waits else None
        return {
            **asdict(self.entry),
            "folder": str(self.entry.folder),
            "model_dir": self.model_dir,
            "state": self.phase,
            "scheduler_state": asdict(self.state) if self.state else None,
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
        self._asked = read_manifest(entry.folder).get("resources") or {}
        model_dir = Path(entry.model_dir) if entry.model_dir else None
        self._reader = ProgressReader(entry.folder, model_dir, is_brief=is_brief)
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


def find_phase(entry: Entry, state: SlurmState | None, progress: Progress, asked_at: float | None) -> Phase:
    """The phase of a job; the scheduler knows whether it runs, the job's own files how it ended.

    The files go before an older answer of the scheduler's.
    """
    if not entry.was_taken:
        return "not taken"
    ended = _ending(entry.ended)
    if ended is not None:
        return ended
    written, ended = progress.state, _ending(progress.state)
    on_its_way = next((phase for phase in ("running", "requeued") if phase == written), None)
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


def _last_lines(log: Path) -> tuple[str, ...]:
    text = read_tail(log, _LOG_TAIL_BYTES, []).decode("utf-8", errors="replace")
    lines = [clean(line) for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-_NUM_LOG_LINES:]


def _explain(log: Path) -> tuple[tuple[str, str], ...]:
    """The first causes of the last failed step in the log, each with its cure."""
    from portwright.launch.explain import errors_by_run, explain_log

    try:
        last, _ = errors_by_run(explain_log(log))
    except PortwrightError:  # no readable log
        return ()
    return tuple(
        (f"{found.meaning.rstrip('.')} (line {found.line})", found.cure) for found in last[:_MOST_CAUSES]
    )
