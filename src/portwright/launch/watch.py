"""Watching jobs: one until it ends, or all of them once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from portwright.errors import PortwrightError
from portwright.job.stdout import printing
from portwright.launch.page_text import (
    Marks,
    as_rich,
    choose_marks,
    is_terminal,
    make_console,
    page_width,
    print_lines,
)
from portwright.launch.registry import Entry, ask_state, ask_states
from portwright.launch.render import job_page, status_line
from portwright.launch.slurm import SlurmState
from portwright.launch.view import AskState, Looker, View

if TYPE_CHECKING:
    from rich.live import Live

LOCAL_POLL_SECONDS = 2.0
SLURM_POLL_SECONDS = 10.0  # the controller serves all users of a site
_LOOK_SECONDS = 2.0  # between reads of files
_MOST_WAIT_SECONDS = 60.0  # between questions to a scheduler that does not answer
_LINE_SECONDS = 60.0  # between lines with nothing new but the step
# So many equal answers in a row are taken as the job's end where its own files do not show the end.
_NUM_ANSWERS_TO_BELIEVE = {"lost": 3}
_NUM_ANSWERS_ELSE = 2


@dataclass(frozen=True)
class Followed:
    """How following ended: at the end of the job, or by Ctrl-C."""

    view: View
    is_detached: bool


def look_at_job(entry: Entry, ask_one: AskState = ask_state) -> View:
    """The view of one job now."""
    looker = Looker(entry, ask_one)
    looker.ask()
    return looker.look()


def look_at_jobs(
    entries: Sequence[Entry],
    ask_one: AskState = ask_state,
    ask_all: Callable[[Sequence[Entry]], dict[str, SlurmState]] = ask_states,
) -> list[View]:
    """The views of many jobs, for a table: SLURM is asked once for all, and only the ends of long logs are read."""
    answers, problem = dict[str, SlurmState](), None
    try:
        answers = ask_all(entries)
    except PortwrightError as error:
        problem = error

    def answer(entry: Entry) -> SlurmState:
        if entry.name in answers:
            return answers[entry.name]
        if problem is not None and entry.scheduler == "slurm":
            raise problem
        return ask_one(entry)

    views = []
    for entry in entries:
        looker = Looker(entry, answer, is_brief=True)
        looker.ask()
        views.append(looker.look())
    return views


def follow(
    entry: Entry,
    *,
    ask_one: AskState = ask_state,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Followed:
    """Shows a job until it ends: a page that is redrawn on a terminal, else a line at each change.

    Ctrl-C leaves the job running. A scheduler that does not answer is asked again, at growing intervals.
    """
    follower = _Follower(entry, ask_one, sys.stdout if stream is None else stream, clock, sleep)
    with printing():
        return follower.run()
    return Followed(follower.view, is_detached=True)  # the reader of the output has gone


class _Follower:
    def __init__(
        self,
        entry: Entry,
        ask_one: AskState,
        stream: TextIO,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._looker = Looker(entry, ask_one, clock)
        self._entry, self._stream, self._clock, self._sleep = entry, stream, clock, sleep
        self._marks: Marks = choose_marks(stream)
        self._poll_seconds = SLURM_POLL_SECONDS if entry.scheduler == "slurm" else LOCAL_POLL_SECONDS
        self._wait_seconds = self._poll_seconds
        self._next_ask = 0.0
        self._same_ends = 0
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0
        self._told_step: int | None = None
        self.view = self._looker.look()

    def run(self) -> Followed:
        draws = is_terminal(self._stream) and os.environ.get("TERM") != "dumb"
        try:
            if draws:
                from rich.live import Live

                console = make_console(self._stream)
                with Live(
                    console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
                ) as live:
                    self._watch(live)
            else:
                self._watch(None)
        except KeyboardInterrupt:
            name = self._entry.name
            print(
                f"\nleft {name}, which goes on. Come back: portwright jobs {name} -f; end it: portwright cancel {name}",
                file=self._stream,
                flush=True,
            )
            return Followed(self.view, is_detached=True)
        print_lines(job_page(self.view, page_width(self._stream), self._marks), self._stream)
        return Followed(self.view, is_detached=False)

    def _watch(self, live: Live | None) -> None:
        while True:
            asked = self._ask_if_due()
            self.view = self._looker.look()
            if live is not None:
                live.update(as_rich(job_page(self.view, page_width(self._stream), self._marks)), refresh=True)
            else:
                self._tell_change()
            if self._is_over(asked):
                return
            self._sleep(_LOOK_SECONDS)

    def _ask_if_due(self) -> bool:
        now = self._clock()
        # Asks too if the clock was set back.
        if now < self._next_ask <= now + _MOST_WAIT_SECONDS:
            return False
        self._looker.ask()
        answered = self._looker.unanswered is None
        self._wait_seconds = (
            self._poll_seconds if answered else min(_MOST_WAIT_SECONDS, 2 * self._wait_seconds)
        )
        self._next_ask = self._clock() + self._wait_seconds
        return answered

    def _is_over(self, asked: bool) -> bool:
        """Whether the job's end is certain: between two attempts a scheduler may call it failed or not know it for a moment."""
        view = self.view
        if not view.is_ended:
            self._same_ends = 0
            return False
        if view.phase == "not taken" or view.entry.ended or view.phase == view.progress.state:
            return True
        self._same_ends += asked
        return self._same_ends >= _NUM_ANSWERS_TO_BELIEVE.get(view.phase, _NUM_ANSWERS_ELSE)

    def _tell_change(self) -> None:
        view, progress = self.view, self.view.progress
        state, training = view.state, progress.training
        news = (
            view.phase,
            progress.step,
            view.restarts,
            state.queue_position if state else None,
            state.reason if state and view.phase in ("pending", "requeued") else None,
            progress.evaluation.step if progress.evaluation else None,
            progress.checkpoint.step if progress.checkpoint and view.phase == "running" else None,
            int(10 * training.fraction) if training and training.fraction is not None else None,
            view.unanswered is None,
        )
        step = training.step if training else None
        is_due = step != self._told_step and self._clock() - self._told_at >= _LINE_SECONDS
        if news == self._told and not is_due:
            return
        self._told, self._told_step, self._told_at = news, step, self._clock()
        line = status_line(view)
        if view.unanswered:
            line += f"  (the scheduler does not answer: {view.unanswered})"
        print(line, file=self._stream, flush=True)
