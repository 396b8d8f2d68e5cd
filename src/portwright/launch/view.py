"""All that is known of a job at one moment: what its scheduler says, and what its folders say."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from portwright.errors import PortwrightError
from portwright.launch.page_text import clean
from portwright.launch.progress import Progress, ProgressReader, as_plain, read_tail, read_time
from portwright.launch.queue_words import explain_reason, explain_status, explain_word
from portwright.launch.registry import Entry
from portwright.launch.slurm import SlurmState

Phase = Literal[
    "pending", "requeued", "running", "done", "failed", "cancelled", "lost", "not taken", "unknown"
]
ENDED: tuple[Phase, ...] = ("done", "failed", "cancelled", "lost", "not taken")
_NUM_LOG_LINES = 12
_LOG_TAIL_BYTES = 32 << 10
_MOST_CAUSES = 2
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")

AskState = Callable[[Entry], SlurmState]


@dataclass(frozen=True)
class Asked:
    """What a job was given, from its manifest."""

    workdir: str | None = None
    target: str | None = None
    partition: str | None = None
    minutes: int | None = None
    grace_seconds: int = 0
    model_dir: str | None = None


@dataclass(frozen=True)
class View:
    """A job at one moment; `render` makes pages of it."""

    entry: Entry
    asked: Asked
    phase: Phase
    state: SlurmState | None  # None: the scheduler did not answer
    unanswered: str | None  # why not
    progress: Progress
    login_host: str | None
    explanations: tuple[tuple[str, str], ...]  # what the log of a failed job says, and the cure
    log_lines: tuple[str, ...]  # the last ones, of a failed job
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
        """Whether a training is going on that has logged something since its last start."""
        training, began = self.progress.training, self.progress.time
        if self.phase != "running" or training is None or self.progress.step not in (None, "train"):
            return False
        return began is None or training.logged is None or training.logged >= began

    @property
    def training_seconds_left(self) -> float | None:
        """Of a training that is going on."""
        training = self.progress.training
        return training.seconds_left(self.now) if training is not None and self.is_training else None

    @property
    def limit_seconds_left(self) -> int | None:
        """Until the scheduler's time limit."""
        return parse_time_left(self.state.time_left) if self.state and self.phase == "running" else None

    @property
    def num_more_requeues(self) -> int | None:
        """How often the training will be requeued at the time limit before it is through; None: not known."""
        training, limit = self.training_seconds_left, self.limit_seconds_left
        if training is None or limit is None:
            return None
        over = training - max(0, limit - self.asked.grace_seconds)
        if over <= 0:
            return 0
        each = (self.asked.minutes or 0) * 60 - self.asked.grace_seconds
        return math.ceil(over / each) if each > 0 else None

    @property
    def why_failed(self) -> str:
        """In words: what the scheduler says of the end, and what the status means."""
        status = self.state.exit if self.state and self.state.exit else self.progress.status
        status = status if status else self.entry.status
        words = explain_word(self.state.word) if self.state else ""
        if not words and self.state and self.state.reason and self.state.word == "":
            words = self.state.reason  # a sentence of the local supervisor's
        words = words or self.entry.reason  # as it was when the end was noted
        told = explain_status(status) if status else ""
        where = f"step {self.progress.step}" if self.progress.step else ""
        return "; ".join(part for part in (where, words, told) if part) or "nobody says why"

    def as_json(self) -> dict[str, Any]:
        reason = (
            explain_reason(self.state.reason)
            if self.state and self.phase in ("pending", "requeued")
            else None
        )
        return {
            **as_plain(self.entry),
            "folder": str(self.entry.folder),
            "model_dir": self.model_dir,
            "state": self.phase,
            "scheduler_state": self.state.as_dict() if self.state else None,
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
    """Looks at one job as often as wanted; `ask_state` may raise, which is told and not passed on."""

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
        self._explained: tuple[int, tuple[tuple[str, str], ...]] = (-1, ())  # of a log of so many bytes
        self._login_host = find_login_host(entry.site)
        self.state: SlurmState | None = None
        self.unanswered: str | None = None
        self._asked_at: float | None = None

    def ask(self) -> None:
        """Asks the scheduler; where it does not answer, what it said last stays."""
        if self.entry.ended or not self.entry.was_taken:
            return
        asked_at = self._clock()
        try:
            self.state, self.unanswered = self._ask_state(self.entry), None
            self._asked_at = asked_at
        except PortwrightError as error:
            self.unanswered = error.message

    def look(self) -> View:
        """Reads the job's folders, and puts both together."""
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
            login_host=self._login_host,
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
    """Where a job stands; the scheduler knows whether it runs, the job's own files how it ended.

    What the files say goes before an answer of the scheduler's that is older.
    """
    if not entry.was_taken:
        return "not taken"
    if entry.ended in ("done", "failed", "cancelled"):
        return entry.ended  # type: ignore[return-value]
    written = progress.state
    is_newer = asked_at is not None and progress.time is not None and progress.time >= asked_at
    if is_newer and written in ("running", "requeued", "done", "failed", "cancelled"):
        return written  # type: ignore[return-value]
    if state is None or state.state == "unknown":
        if written in ("done", "failed", "cancelled"):
            return written  # type: ignore[return-value]
        return "lost" if state is not None else _without_scheduler(written)
    if state.state == "pending":
        return "requeued" if state.restarts or progress.attempts or written is not None else "pending"
    if state.state == "running":
        # The script's last word comes a moment before the scheduler's.
        if written == "requeued":
            return "requeued"
        if state.word == "COMPLETING" and written in ("done", "failed", "cancelled"):
            return written  # type: ignore[return-value]
        return "running"
    return state.state


def _without_scheduler(written: str | None) -> Phase:
    return "running" if written == "running" else "requeued" if written == "requeued" else "unknown"


def read_asked(folder: Path) -> Asked:
    """What a job's manifest says of its resources; empty where there is none that can be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return Asked()
    if not isinstance(manifest, dict):
        return Asked()
    resources = manifest.get("resources")
    resources = resources if isinstance(resources, dict) else {}

    def text(where: dict[str, Any], key: str) -> str | None:
        value = where.get(key)
        return value if isinstance(value, str) and value else None

    def whole(key: str) -> int | None:
        value = resources.get(key)
        return value if type(value) is int and value > 0 else None

    return Asked(
        workdir=text(manifest, "workdir"),
        target=text(manifest, "target"),
        partition=text(resources, "partition"),
        minutes=whole("minutes"),
        grace_seconds=whole("grace_seconds") or 0,
        model_dir=text(manifest, "model_dir"),
    )


def find_login_host(site: str) -> str | None:
    """The login node of a site; None where its file is gone or names none."""
    from portwright.launch.site_files import load_site

    with contextlib.suppress(PortwrightError):
        return load_site(site).login.host
    return None


def parse_time_left(text: str | None) -> int | None:
    """Seconds of a time as squeue writes it: 12:34, 3:12:01 or 1-00:00:00."""
    found = _TIME_LEFT.fullmatch(text or "")
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _last_lines(log: Path) -> tuple[str, ...]:
    text = read_tail(log, _LOG_TAIL_BYTES, []).decode("utf-8", errors="replace")
    lines = [clean(line) for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-_NUM_LOG_LINES:]


def _explain(log: Path) -> tuple[tuple[str, str], ...]:
    """What the log says of the last step that went wrong: the first causes, each with its cure."""
    from portwright.launch.explain import explain_log

    try:
        errors = [found for found in explain_log(log) if found.level == "error"]
    except PortwrightError:  # no log, or none that may be read: then there is nothing to say of it
        return ()
    last = [found for found in errors if (found.step, found.attempt) == (errors[-1].step, errors[-1].attempt)]
    return tuple(
        (f"{found.meaning.rstrip('.')} (line {found.line})", found.cure) for found in last[:_MOST_CAUSES]
    )
