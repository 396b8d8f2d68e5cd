"""The page of a job, its line, and the table of jobs, as a terminal or a file gets them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_job import NOW, SUBMITTED, Watched, line, running, training_lines

from portwright.errors import UserError
from portwright.launch.page_text import (
    ASCII,
    UNICODE,
    as_plain_text,
    choose_marks,
    clean,
    cut,
    print_lines,
    width_of,
    wrap,
)
from portwright.launch.queue_words import explain_reason, explain_status
from portwright.launch.render import job_page, jobs_table, status_line
from portwright.launch.slurm import SlurmState
from portwright.launch.times import seconds_of
from portwright.launch.view import View

WIDTHS = (60, 80, 100, 200)


@pytest.fixture
def job(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def page(view: View, width: int = 100) -> str:
    return as_plain_text(job_page(view, width))


def words(view: View) -> str:
    """The page as one line, wherever it was broken."""
    return " ".join(page(view).split())


def started(job: Watched, steps: int = 430, **state: int) -> Watched:
    job.done("validate", "compile")
    job.state("running", "train", **state)
    job.log(training_lines(steps))
    return job


def test_a_job_that_waits(job: Watched) -> None:
    estimate = "2027-01-15T12:30:00"
    text = page(
        job.view(SlurmState("pending", "PENDING", "Priority", queue_position=3, start_estimate=estimate))
    )
    assert "mymodel-3  waits in the queue, place 3 in sdf  fc_mnist at neocortex, job 4711" in text
    assert "jobs with a higher priority are before it in the queue." in text
    assert "about 2027-01-15 12:30" in text
    assert "validate ·  compile ·  train ·  eval ·" in text
    assert "portwright cancel mymodel-3" in text
    assert "tensorboard" not in text


def test_a_job_that_waits_over_an_earlier_run(job: Watched) -> None:
    job.log(line(s, 1.0, s, SUBMITTED - 5000 + s) for s in range(10, 101, 10))
    text = page(job.view(SlurmState("pending", "PENDING", "")))
    assert "its folder has a run up to step 100: training goes on from there" in text
    assert "loss" not in text


def test_a_job_that_trains(job: Watched) -> None:
    text = page(started(job).view(running(time_left="1:00:00")))
    assert "mymodel-3  runs on sdf-[1-2]" in text
    assert "validate ✓  compile ✓  train ▶ 43%  eval ·" in text
    assert re.search(r"━{25}─{35}  step 430/1000", text)
    assert "loss      0.2326 now" in text
    assert "2.00 steps/s  128 samples/s" in text
    assert "3:45 of training; 1:00:00 until the time limit; it will be through before that" in text


def test_a_training_longer_than_the_limit_says_how_often_it_is_requeued(job: Watched) -> None:
    job.write("params.yaml", "runconfig: {max_steps: 100000}")
    text = words(started(job).view(running(time_left="0:10:00")))
    assert "it will be saved and requeued about 4 times before it is through" in text
    view = started(Watched(job.folder.parent, "other-1"), 998).view(running(time_left="0:02:00"))
    assert view.num_more_requeues == 0


def test_an_attempt_that_has_logged_nothing_yet_has_no_speed(job: Watched) -> None:
    started(job)
    job.state("running", "train", at=NOW - 30)  # the last line is a minute old
    view = job.view(running(restarts=1))
    assert view.training_seconds_left is None
    assert "speed" not in page(view)
    assert "step 430/1000" in page(view)
    assert "steps/s" not in status_line(view)


def test_a_silent_training_is_told(job: Watched) -> None:
    started(job)
    job.state("running", "train", at=NOW - 3550)
    job.log(line(s, 1.0, s, NOW - 3500 + s) for s in range(10, 101, 10))
    assert "nothing was logged for 56:40" in page(job.view(running()))


def test_a_loss_that_is_not_finite_is_an_alarm(job: Watched) -> None:
    started(job).log([line(10, 1.0, 1, NOW - 2), line(20, None, 2, NOW, non_finite={"loss": "nan"})])
    text = page(job.view(running()))
    assert "the loss was not finite at step 20" in text
    assert "nan now, 1.0000 best (step 10)" in text


def test_an_emulated_run_says_so_at_the_top(job: Watched) -> None:
    started(job).log([line(10, 1.0, 1, NOW, emulated="PopTorch 3.4")])
    assert "(emulated: PopTorch 3.4)" in page(job.view(running())).splitlines()[0]


def test_a_requeued_job(job: Watched) -> None:
    started(job)
    job.state("requeued", "train", 85, 1)
    job.write("attempts", "2027-01-15T09:00:00Z requeue:signal 250 train\n")
    text = page(job.view(SlurmState("pending", "PENDING", "BeginTime", restarts=1)))
    assert "mymodel-3  waits to go on" in text
    assert "step 430/1000; it goes on from its last checkpoint" in text
    assert "2027-01-15 09:00 UTC  train: saved before the time limit and requeued; saved: step 250" in text


def test_a_failed_job(job: Watched) -> None:
    started(job)
    job.checkpoint(400)
    job.state("failed", "train", 137, 3)
    job.write("log.txt", "one\n\x1b[31mred\x1b[0m \x07bell\nold\rnew\n" + "x" * 500 + "\nlast words\n\n")
    text = page(job.view(SlurmState("failed", "OUT_OF_MEMORY", "OutOfMemory", exit=137)))
    assert "train ✗ 43%" in text
    assert "step train; it needed more memory than it was given (--mem); status 137: killed" in " ".join(
        text.split()
    )
    assert "  | red \\x07bell\n  | new\n" in text
    assert "  | last words\n" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "training goes on from step 400" in text


def test_what_the_log_says_of_a_failure(job: Watched) -> None:
    started(job)
    job.state("failed", "train", 1)
    job.write("log.txt", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB\n")
    view = job.view(SlurmState("failed", "FAILED", "NonZeroExitCode", exit=1))
    assert view.explanations
    what, cure = view.explanations[0]
    assert what.endswith("(line 1)")
    assert cure
    assert "log says" in page(view)
    assert view.as_json()["explanations"][0]["cure"] == cure


def test_a_log_of_which_nothing_is_known(job: Watched) -> None:
    job.state("failed", "train", 1)
    assert job.view(SlurmState("failed", "FAILED")).explanations == ()
    job.write("log.txt", "all is well\n")
    assert job.view(SlurmState("failed", "FAILED")).explanations == ()


def test_a_done_job(job: Watched) -> None:
    job.done("validate", "compile", "train", "eval")
    job.log([*training_lines(1000), line(1000, 0.25, 510, NOW - 50, kind="eval")])
    job.state("done", "")
    job.checkpoint(1000)
    text = words(job.view(SlurmState("unknown")))
    assert "mymodel-3 is done" in text
    assert "loss 0.2500 (evaluated at step 1000)" in text
    assert "-D runconfig.max_steps=2000" in text
    assert "it goes on from step 1000" in text
    assert "cancel" not in text


def test_a_job_that_the_scheduler_forgot_while_it_ran_is_lost(job: Watched) -> None:
    view = started(job).view(SlurmState("unknown"))
    assert view.phase == "lost"
    assert "its script's last word was 'running'" in page(view)


def test_a_job_that_was_not_taken(job: Watched) -> None:
    job.entry = replace(job.entry, scheduler_id="", error="sbatch failed: invalid account.")
    text = page(job.view(SlurmState("unknown")))
    assert "was not taken" in text
    assert "invalid account" in text


def test_a_scheduler_that_does_not_answer_is_told_and_the_rest_is_shown(job: Watched) -> None:
    text = page(started(job).view(UserError("SLURM did not answer squeue within 60 s.")))
    assert "SLURM did not answer squeue within 60 s." in text
    assert "step 430/1000" in text


@pytest.mark.parametrize(
    ("state", "written", "phase"),
    [
        (SlurmState("pending"), None, "pending"),
        (SlurmState("pending"), "requeued", "requeued"),
        (SlurmState("pending", restarts=2), None, "requeued"),
        (SlurmState("running", "RUNNING"), "running", "running"),
        (SlurmState("running", "CONFIGURING"), None, "running"),
        (SlurmState("running", "COMPLETING"), "requeued", "requeued"),
        (SlurmState("running", "COMPLETING"), "done", "done"),
        (SlurmState("done", "COMPLETED"), "done", "done"),
        (SlurmState("failed", "TIMEOUT"), "running", "failed"),
        (SlurmState("cancelled", "CANCELLED"), "running", "cancelled"),
        (SlurmState("unknown"), "cancelled", "cancelled"),
        (SlurmState("unknown"), "requeued", "lost"),
        (SlurmState("unknown"), None, "lost"),
    ],
)
def test_phases(job: Watched, state: SlurmState, written: str | None, phase: str) -> None:
    if written:
        job.state(written)
    assert job.view(state).phase == phase


def test_an_end_that_the_registry_knows_is_not_asked_for(job: Watched) -> None:
    job.entry = replace(job.entry, ended="cancelled")
    assert job.view(AssertionError("asked")).phase == "cancelled"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("marks", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_no_line_is_wider_than_the_page_but_commands_and_paths(
    job: Watched, width: int, marks: object
) -> None:
    started(job)
    job.write("attempts", "2027-01-15T09:00:00Z retry:137 250 train\n" * 9)
    job.checkpoint(400)
    view = job.view(running(time_left="0:09:00", restarts=9))
    lines = as_plain_text(job_page(view, width, marks)).splitlines()  # type: ignore[arg-type]
    wide = [x for x in lines if width_of(x) > width]
    assert all(re.search(r"ssh -|tensorboard|/", x) for x in wide), wide
    if marks is ASCII:
        assert "\n".join(lines).isascii()


def test_ends_of_many_attempts_are_not_all_listed(job: Watched) -> None:
    started(job)
    job.write("attempts", "2027-01-15T09:00:00Z node 250 train\n" * 50)
    text = page(job.view(running()))
    assert "restarts  50" in text
    assert text.count("the node was lost") == 5


def test_the_page_as_json(job: Watched) -> None:
    started(job).log([line(10, None, 1, NOW, non_finite={"loss": "inf"})])
    document = job.view(running(time_left="0:10:00")).as_json()
    read = json.loads(json.dumps(document, allow_nan=False))
    assert read["state"] == "running"
    assert read["name"] == "mymodel-3"
    assert read["limit_seconds_left"] == 600
    assert read["progress"]["training"]["loss"] is None
    assert read["scheduler_state"]["nodes"] == "sdf-[1-2]"


def test_the_line_of_a_job(job: Watched) -> None:
    view = started(job).view(running(restarts=1))
    assert status_line(view) == (
        "mymodel-3  running  train  step 430/1000  loss 0.2326  2.00 steps/s  ETA 3:45  1 restart"
    )


def _views(tmp_path: Path) -> list[View]:
    names = ["mymodel-3", "an-exceedingly-long-name-that-somebody-gave-to-a-job-1", "x-1"]
    jobs = [Watched(tmp_path, name) for name in names]
    started(jobs[0])
    waiting = SlurmState("pending", "PENDING", "Priority", queue_position=12)
    return [jobs[0].view(running()), jobs[1].view(waiting), jobs[2].view(SlurmState("unknown"))]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_fits(tmp_path: Path, width: int) -> None:
    lines = as_plain_text(jobs_table(_views(tmp_path), width)).splitlines()
    assert all(width_of(x) <= width for x in lines)
    assert len(lines) == 4
    assert lines[0].split()[0] == "name"
    assert "pending #12" in lines[2]
    assert "43% of 1000" in lines[1]


def test_the_table_in_full(tmp_path: Path) -> None:
    lines = as_plain_text(jobs_table(_views(tmp_path), 200)).splitlines()
    assert lines[0].split() == ["name", "site", "state", "step", "progress", "loss", "ETA", "age"]
    assert lines[1].split() == [
        "mymodel-3",
        "neocortex",
        "running",
        "train",
        "43%",
        "of",
        "1000",
        "0.2326",
        "3:45",
        "1:00:00",
    ]
    assert as_plain_text(jobs_table([], 100)).split() == lines[0].split()


def test_nothing_is_coloured_in_a_pipe(job: Watched) -> None:
    stream = io.StringIO()
    print_lines(job_page(started(job).view(running())), stream)
    assert "\x1b" not in stream.getvalue()
    assert "step 430/1000" in stream.getvalue()


# -- pieces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "encoding", "marks"),
    [
        ({"LANG": "en_US.UTF-8"}, "utf-8", UNICODE),
        ({}, "utf-8", UNICODE),
        ({"LANG": "en_US.UTF-8"}, "latin-1", ASCII),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, "utf-8", ASCII),
        ({"LANG": "de_DE.ISO-8859-1"}, "utf-8", ASCII),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8", ASCII),
        ({"LC_ALL": "C.UTF-8"}, "utf-8", UNICODE),
        ({}, "no-such-encoding", ASCII),
    ],
)
def test_which_signs_are_drawn_with(environ: dict[str, str], encoding: str, marks: object) -> None:
    class Stream(io.StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    assert choose_marks(Stream(), environ) is marks


@given(st.text(max_size=80))
def test_cleaned_text_moves_no_cursor(text: str) -> None:
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", clean(text))


@given(st.text(max_size=60), st.integers(min_value=3, max_value=30))
def test_cut_text_fits(text: str, width: int) -> None:
    text = clean(text)
    assert width_of(cut(text, width)) <= width or width_of(text) <= width


def test_wide_letters_count_twice() -> None:
    assert width_of("模型") == 4
    assert wrap("模型 模型 模型", 9) == ["模型 模型", "模型"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "jobs with a higher priority are before it in the queue"),
        ("(Resources)", "it is next, and waits until enough nodes are free"),
        ("ReqNodeNotAvail, UnavailableNodes:sdf-2", "nodes that it needs are down, reserved or in use (UnavailableNodes:sdf-2)"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "nodes that it needs are down, reserved or in use (Reserved for maintenance)"),
        ("AssocGrpCPUMinutesLimit", "the hours granted to the account are spent, or would be by this job (AssocGrpCPUMinutesLimit)"),
        ("QOSMaxJobsPerUserLimit", "the QOS has as many jobs running as it may have (QOSMaxJobsPerUserLimit)"),
        ("QOSMaxGRESPerUser", "the QOS uses as many accelerators as it may use, or this job asks for more (QOSMaxGRESPerUser)"),
        ("launch_failed_requeued_held", "its start failed on the node, so that SLURM holds it"),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "nodes that it needs are down, drained, or kept for partitions of a higher priority",
        ),
        ("SomethingNew", "SLURM says SomethingNew"),
    ],
)  # fmt: skip
def test_reasons_of_slurm(reason: str, words: str) -> None:
    found = explain_reason(reason)
    assert found is not None
    assert found.words == words


@pytest.mark.parametrize("reason", ["", "None", "(None)", "  "])
def test_no_reason(reason: str) -> None:
    assert explain_reason(reason) is None


def test_statuses() -> None:
    assert explain_status(3) == "status 3: the loss became NaN or infinite"
    assert explain_status(138) == "status 138: ended by signal 10"
    assert explain_status(77) == "status 77"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12:34", 754),
        ("3:12:01", 11521),
        ("1-00:00:00", 86400),
        ("UNLIMITED", None),
        ("", None),
        (None, None),
    ],
)
def test_time_left(text: str | None, seconds: int | None) -> None:
    assert seconds_of(text) == seconds
