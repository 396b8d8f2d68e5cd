"""Following a job: what is printed, how often a scheduler is asked, and when it is over."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from watched_job import NOW, Watched, line, running, training_lines

from portwright.errors import UserError
from portwright.launch import watch
from portwright.launch.registry import Entry
from portwright.launch.slurm import NoAnswerError, SlurmState
from portwright.launch.watch import Followed, follow, look_at_job, look_at_jobs


class Play:
    """A job and a scheduler that go on as time passes: `scenes` are what happens from a second on."""

    def __init__(self, job: Watched) -> None:
        self.job, self.seconds = job, 0.0
        self.scenes: dict[float, Callable[[], object]] = {}
        self.answer: SlurmState | Exception = SlurmState("pending", "PENDING", "Priority", queue_position=2)
        self.asked_at: list[float] = []
        self.out = io.StringIO()

    def ask(self, _: Entry) -> SlurmState:
        self.asked_at.append(self.seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def sleep(self, seconds: float) -> None:
        until = self.seconds + seconds
        for moment in sorted(m for m in self.scenes if m <= until):
            self.scenes.pop(moment)()
        self.seconds = until
        assert self.seconds < 100_000, "it never ends"

    def say(self, answer: SlurmState | Exception) -> None:
        self.answer = answer

    def follow(self) -> Followed:
        return follow(
            self.job.entry,
            ask_one=self.ask,
            stream=self.out,
            clock=lambda: NOW + self.seconds,
            sleep=self.sleep,
        )

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def told(self) -> list[str]:
        """The lines before the page at the end."""
        name = self.job.entry.name
        return [x for x in self.lines if x.startswith(f"{name}  ")][:-1]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(Watched(tmp_path))


def _end(play: Play, state: str = "done", status: int = 0) -> Callable[[], None]:
    def end() -> None:
        play.job.done("validate", "compile", "train", "eval")
        play.job.state(state, "", status)
        play.say(SlurmState(state, "COMPLETED", exit=status))  # type: ignore[arg-type]

    return end


def _train(play: Play, steps: int) -> Callable[[], None]:
    def train() -> None:
        play.job.done("validate", "compile")
        play.job.state("running", "train")
        play.job.log(training_lines(steps))
        play.say(running())

    return train


def test_from_the_queue_to_the_end(play: Play) -> None:
    play.scenes = {50: _train(play, 300), 100: _train(play, 800), 150: _end(play)}
    followed = play.follow()
    assert followed.view.phase == "done"
    assert not followed.is_detached
    told = play.told
    assert (
        told[0]
        == "mymodel-3  pending, place 2 in sdf  jobs with a higher priority are before it in the queue"
    )
    assert next(re.sub(r"  .*?steps/s", "", x).split("  ETA")[0] for x in told[1:]).startswith("mymodel-3")
    assert sum("step 300/1000" in x for x in told) >= 1
    assert sum("step 800/1000" in x for x in told) >= 1
    assert "mymodel-3  is done" in play.out.getvalue()


def test_nothing_is_said_where_nothing_changes(play: Play) -> None:
    play.scenes = {4000: _end(play)}
    play.follow()
    assert len(play.told) == 2  # that it waits, and that it is done
    assert "\x1b" not in play.out.getvalue()


def test_slurm_is_asked_every_ten_seconds_and_no_more(play: Play) -> None:
    play.scenes = {200: _end(play)}
    play.follow()
    gaps = [b - a for a, b in zip(play.asked_at, play.asked_at[1:], strict=False)]
    assert gaps
    assert min(gaps) >= 10


def test_a_local_job_is_looked_at_every_two_seconds(tmp_path: Path) -> None:
    play = Play(Watched(tmp_path, scheduler="none"))
    play.say(SlurmState("running"))
    play.scenes = {20: _end(play)}
    play.follow()
    gaps = [b - a for a, b in zip(play.asked_at, play.asked_at[1:], strict=False)]
    assert set(gaps) == {2.0}


def test_a_scheduler_that_is_silent_is_asked_ever_more_seldom_and_heard_again(play: Play) -> None:
    play.scenes = {
        20: _train(play, 100),
        30: lambda: play.say(NoAnswerError("SLURM did not answer within 60 s.")),
        1000: lambda: play.say(running()),
        1200: _end(play),
    }
    assert play.follow().view.phase == "done"
    silent = [moment for moment in play.asked_at if 30 <= moment < 1000]
    gaps = [b - a for a, b in itertools.pairwise(silent)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60
    assert any("the scheduler does not answer: SLURM did not answer within 60 s." in x for x in play.told)


def test_what_the_job_itself_writes_is_believed_while_slurm_is_silent(play: Play) -> None:
    play.say(NoAnswerError("SLURM does not answer."))
    play.scenes = {60: lambda: (play.job.state("failed", "train", 3), play.job.log([line(10, 1.0, 1, NOW)]))}
    followed = play.follow()
    assert followed.view.phase == "failed"
    assert "status 3: the loss became NaN or infinite" in play.out.getvalue()


def test_a_failure_between_two_attempts_is_not_the_end(play: Play) -> None:
    _train(play, 100)()
    play.scenes = {
        20: lambda: play.say(SlurmState("failed", "NODE_FAIL")),
        25: lambda: play.say(SlurmState("pending", "PENDING", "BeginTime", restarts=1)),
        40: _train(play, 200),
        60: _end(play),
    }
    assert play.follow().view.phase == "done"
    assert any("requeued" in x for x in play.told)


def test_a_job_that_begins_between_two_questions_is_not_taken_for_a_requeued_one(play: Play) -> None:
    def begin() -> None:
        play.job.state("running", "validate", at=NOW + 23)

    play.scenes = {23: begin, 30: lambda: play.say(running()), 60: _end(play)}
    play.follow()
    assert not any("requeued" in x for x in play.told)
    assert play.told[1] == "mymodel-3  running  validate"


def test_a_failure_that_lasts_is_the_end(play: Play) -> None:
    _train(play, 100)()
    play.scenes = {20: lambda: play.say(SlurmState("failed", "NODE_FAIL"))}
    followed = play.follow()
    assert followed.view.phase == "failed"
    assert "a node failed" in play.out.getvalue()


def test_a_job_that_slurm_does_not_know_any_more_is_given_up_after_some_answers(play: Play) -> None:
    _train(play, 100)()
    play.scenes = {20: lambda: play.say(SlurmState("unknown"))}
    assert play.follow().view.phase == "lost"
    assert play.asked_at[-1] >= 40


def test_an_ended_job_is_shown_at_once(play: Play) -> None:
    _end(play)()
    play.job.entry = replace(play.job.entry, ended="done")
    assert play.follow().view.phase == "done"
    assert play.asked_at == []
    assert play.seconds == 0


def test_ctrl_c_leaves_the_job_alone(play: Play) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    play.scenes = {20: interrupt}
    followed = play.follow()
    assert followed.is_detached
    assert play.lines[-1] == (
        "left mymodel-3, which goes on. Come back: portwright jobs mymodel-3 -f; end it: portwright cancel mymodel-3"
    )


def test_steps_alone_are_told_once_a_minute(play: Play) -> None:
    play.job.write("params.yaml", "runconfig: {max_steps: 1000000}")
    _train(play, 100)()
    for moment in range(2, 601, 2):
        play.scenes[moment] = lambda moment=moment: play.job.log(training_lines(100 + 10 * moment))
    play.scenes[602] = _end(play)
    play.follow()
    assert 10 <= len(play.told) <= 13


def test_many_jobs_with_one_question(tmp_path: Path) -> None:
    jobs = [Watched(tmp_path, f"m-{n}", "slurm" if n % 2 else "none") for n in range(4)]
    questions: list[int] = []

    def ask_all(entries: object) -> dict[str, SlurmState]:
        questions.append(1)
        return {"m-1": running(), "m-3": SlurmState("pending", "PENDING")}

    views = look_at_jobs([j.entry for j in jobs], lambda _: SlurmState("running"), ask_all)
    assert [v.phase for v in views] == ["running", "running", "running", "pending"]
    assert len(questions) == 1


def test_many_jobs_while_slurm_is_silent(tmp_path: Path) -> None:
    jobs = [Watched(tmp_path, "m-1"), Watched(tmp_path, "m-2", "none")]
    jobs[0].state("running")

    def silent(_: object) -> dict[str, SlurmState]:
        raise NoAnswerError("SLURM does not answer.")

    views = look_at_jobs([j.entry for j in jobs], lambda _: SlurmState("running"), silent)
    assert [(v.phase, v.unanswered) for v in views] == [
        ("running", "SLURM does not answer."),
        ("running", None),
    ]


def test_an_error_that_is_none_of_ours_is_not_swallowed(play: Play) -> None:
    play.say(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        look_at_job(play.job.entry, play.ask)
    play.say(UserError("scontrol failed."))
    assert look_at_job(play.job.entry, play.ask).unanswered == "scontrol failed."


# -- in processes of their own -------------------------------------------------------------------------------------

_SCRIPT = """
    import sys, time
    from dataclasses import replace
    from pathlib import Path
    sys.path.insert(0, {here!r})
    from watched_job import Watched, training_lines, running
    from portwright.launch import watch
    from portwright.launch.slurm import SlurmState
    watch._LOOK_SECONDS = 0.05
    job = Watched(Path({root!r}), scheduler="none")
    job.done("validate", "compile"); job.state("running"); job.log(training_lines(430))
    answers = iter({answers})
    def ask(entry):
        state = next(answers, SlurmState("running"))
        if state.state == "done":
            job.done("train", "eval"); job.state("done", "")
        return state
    watch.LOCAL_POLL_SECONDS = 0.05
    watch.follow(job.entry, ask_one=ask)
    """


def _script(root: Path, answers: str) -> list[str]:
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", textwrap.dedent(_SCRIPT.format(here=here, root=str(root), answers=answers))]


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 4096)
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal says when its last user has gone
                raise
            return
        if not data:
            return
        yield data


def _environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LC_ALL")}
    return {**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **more}


def test_on_a_terminal_the_page_is_drawn_in_place(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    answers = '[SlurmState("running"), SlurmState("running"), SlurmState("done")]'
    process = subprocess.Popen(
        _script(tmp_path, answers), stdin=theirs, stdout=theirs, stderr=theirs, env=_environment()
    )
    os.close(theirs)
    text = b"".join(_read(ours)).decode()
    os.close(ours)
    assert process.wait() == 0
    assert "\x1b[" in text
    assert "train ▶ 43%" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "is done" in text


def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _script(tmp_path, "[]"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=_environment(),
        start_new_session=True,
    )
    os.close(theirs)
    seen, interrupted = b"", False
    for data in _read(ours):
        seen += data
        if b"430/1000" in seen and not interrupted:
            interrupted = True
            process.send_signal(signal.SIGINT)
    os.close(ours)
    assert process.wait() == 0
    assert b"left mymodel-3, which goes on." in seen
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h")  # the cursor is back
    assert b"Traceback" not in seen


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    process = subprocess.Popen(
        _script(tmp_path, '[SlurmState("running")] * 4 + [SlurmState("done")]'),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 0
    assert errors == ""


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(watch, "is_terminal", lambda stream: True)
    _end(play)()
    play.follow()
    assert "\x1b" not in play.out.getvalue()


def test_the_document_of_a_followed_job_is_json(play: Play) -> None:
    _end(play)()
    document = play.follow().view.as_json()
    assert json.loads(json.dumps(document, allow_nan=False))["state"] == "done"
