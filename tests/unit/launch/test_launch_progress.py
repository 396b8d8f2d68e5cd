"""How far a job is, from files that are growing, torn, damaged, huge or not there."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_job import NOW, SUBMITTED, Watched, line, training_lines

from portwright.launch import run_files
from portwright.launch.progress import Progress, ProgressReader, Training
from portwright.launch.run_files import MetricsFile, list_seen, thin_out


@pytest.fixture
def job(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def read(job: Watched) -> Progress:
    return ProgressReader(job.folder, job.model_dir).read()


def trained(job: Watched) -> Training:
    training = read(job).training
    assert training is not None
    return training


def test_nothing_but_a_folder_is_a_job_that_has_not_begun(tmp_path: Path) -> None:
    progress = ProgressReader(tmp_path / "none", tmp_path / "none run").read()
    assert progress.state is None
    assert progress.training is None
    assert progress.chain == ()
    assert progress.notes == ()


def test_a_job_without_a_run_folder(job: Watched) -> None:
    job.state("running", "compile")
    progress = ProgressReader(job.folder, None).read()
    assert progress.step == "compile"
    assert progress.training is None
    assert progress.checkpoint is None


def test_a_training_that_goes_on(job: Watched) -> None:
    job.log(training_lines(430))
    training = trained(job)
    assert (training.step, training.total) == (430, 1000)
    assert training.fraction == 0.43
    assert training.loss == pytest.approx(100 / 430)
    assert training.best_step == 430
    assert training.steps_per_second == pytest.approx(2.0)
    assert training.samples_per_second == pytest.approx(128.0)
    assert training.seconds_left(NOW) == pytest.approx(570 / 2 - 60)
    assert training.series[0] == (10, 10.0)
    assert training.resumed_at == ()


def test_seconds_left_are_never_less_than_none(job: Watched) -> None:
    job.log(training_lines(1000))
    assert trained(job).seconds_left(NOW + 1e6) == 0.0


def test_losses_of_every_step_make_the_curve(job: Watched) -> None:
    job.log([line(4, 1.0, 1.0, NOW, losses=[4.0, 3.0, 2.0, 1.0])])
    assert trained(job).series == ((1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0))


def test_speed_leaves_the_gap_between_two_starts_out(job: Watched) -> None:
    before = [line(s, 1.0, s / 2, SUBMITTED + s / 2) for s in range(10, 101, 10)]
    hours_later = [line(s, 1.0, (s - 100) / 4, SUBMITTED + 3000 + (s - 100) / 4) for s in range(110, 151, 10)]
    job.log([*before, *hours_later])
    training = trained(job)
    assert training.steps_per_second == pytest.approx(4.0)
    assert training.resumed_at == (100,)


def test_a_restart_is_seen_even_where_the_first_line_comes_later_than_all_of_the_last_attempt(
    job: Watched,
) -> None:
    job.log([line(10, 1.0, 2.0, SUBMITTED + 2), line(20, 1.0, 30.0, SUBMITTED + 100)])
    assert trained(job).resumed_at == (10,)


def test_no_restart_where_there_is_none_though_times_are_rounded(job: Watched) -> None:
    job.log([line(1, 1.0, 0.0004, SUBMITTED + 0.0), line(2, 1.0, 0.0014, SUBMITTED + 0.002)])
    assert trained(job).resumed_at == ()


def test_one_line_has_its_own_speed(job: Watched) -> None:
    job.log([line(10, 1.0, 500.0, NOW)])  # much of it compiling
    assert trained(job).steps_per_second == 2.0


def test_a_torn_last_line_is_left_until_it_is_whole(job: Watched) -> None:
    job.log(training_lines(100))
    with job.metrics.open("a") as file:
        file.write('{"step": 110, "kind": "tr')
    reader = ProgressReader(job.folder, job.model_dir)
    first = reader.read()
    assert first.training is not None
    assert first.training.step == 100
    assert first.notes == ()
    with job.metrics.open("a") as file:
        file.write(f'ain", "values": {{"loss": 0.5}}, "time_seconds": 55, "wall_time": {NOW:f}}}\n')
    then = reader.read()
    assert then.training is not None
    assert (then.training.step, then.training.loss) == (110, 0.5)


def test_damaged_lines_are_told_and_left_out(job: Watched) -> None:
    good = json.dumps(line(10, 1.0, 1.0, NOW))
    job.metrics.write_bytes(
        b"\0\0\0\n"
        + b'{"step": "x"}\nno json\n[1]\n\xff\xfe\n'
        + (b'{"step": 1, "values": 3}\n' + b"[" * 50_000 + b"\n" + good.encode() + b"\n")
    )
    progress = read(job)
    assert progress.training is not None
    assert progress.training.step == 10
    assert progress.notes == ("6 lines of metrics.jsonl are damaged and left out.",)


def test_a_loss_that_is_not_finite(job: Watched) -> None:
    nan = line(20, None, 2.0, NOW, losses=[1.0, None, 1.0], non_finite={"loss": "nan"})
    job.log([line(10, 2.0, 1.0, NOW - 1), nan])
    training = trained(job)
    assert training.loss is not None
    assert math.isnan(training.loss)
    assert training.non_finite_step == 19
    assert training.best_loss == 2.0
    document = read(job).as_json()
    assert document["training"]["loss"] is None
    json.dumps(document, allow_nan=False)


def test_values_of_other_kinds_do_no_harm(job: Watched) -> None:
    odd = line(10, 1.0, 1.0, NOW)
    odd["values"].update({"text": "x", "flag": True, "huge": 10**400})
    odd["losses"] = [1.0, "x", [], 10**400, -(10**400)]
    job.log([odd])
    assert trained(job).loss == 1.0
    json.dumps(read(job).as_json(), allow_nan=False)


def test_a_resumed_run_writes_the_file_anew_and_is_read_anew(job: Watched) -> None:
    reader = ProgressReader(job.folder, job.model_dir)
    job.log(training_lines(500))
    reader.read()
    kept = job.metrics.read_bytes().splitlines(keepends=True)[:20]
    other = job.metrics.with_suffix(".new")
    other.write_bytes(b"".join(kept))
    other.replace(job.metrics)
    training = reader.read().training
    assert training is not None
    assert training.step == 200
    assert len(training.series) == 20


def test_what_was_read_is_not_read_again(job: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ProgressReader(job.folder, job.model_dir)
    job.log(training_lines(500))
    reader.read()
    parsed: list[bytes] = []
    parse = run_files._parse
    monkeypatch.setattr(run_files, "_parse", lambda raw: (parsed.append(raw), parse(raw))[1])
    with job.metrics.open("a") as file:
        file.write(json.dumps(line(510, 0.1, 255.0, NOW)) + "\n")
    training = reader.read().training
    assert training is not None
    assert training.step == 510
    assert len(parsed) == 1


def test_of_a_huge_file_the_end_is_read(job: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(run_files, "_TAIL_BYTES", 5_000)
    before = [line(s, 100.0 / s, s / 2, SUBMITTED + s / 2) for s in range(1, 1001)]
    after = [line(s, 100.0 / s, (s - 1000) / 4, SUBMITTED + 1000 + s / 4) for s in range(1001, 2001)]
    job.log([*before, *after])
    assert job.metrics.stat().st_size > 200_000
    training = trained(job)
    assert training.is_sampled
    assert training.step == 2000
    steps = [step for step, _ in training.series]
    assert steps == list(range(2001 - len(steps), 2001))
    assert 10 < len(steps) < 100
    assert training.steps_per_second == pytest.approx(4.0)


def test_a_row_of_a_table_reads_the_end_alone(job: Watched) -> None:
    job.log(training_lines(40_000))
    reader = ProgressReader(job.folder, job.model_dir, is_brief=True)
    training = reader.read().training
    assert training is not None
    assert training.step == 40_000
    assert training.series[0][0] > 1000


def test_a_long_curve_is_thinned_out(job: Watched) -> None:
    job.log(training_lines(60_000, every=10))
    assert len(trained(job).series) == 512
    metrics = MetricsFile(job.metrics).read()
    assert len(metrics.points) <= 4096


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60),
    st.integers(min_value=1, max_value=20),
)
def test_thinning_keeps_the_last_step_and_the_bound(losses: list[float], most: int) -> None:
    points = list(enumerate(losses))
    thinned = thin_out(points, most)
    assert len(thinned) <= max(most, 0) or len(points) <= most
    if points:
        assert thinned[-1][0] == points[-1][0]
    if losses and all(abs(x) <= 1e308 for x in losses):
        low, high = min(losses), max(losses)
        slack = 1e-9 * max(abs(low), abs(high))
        assert all(low - slack <= x <= high + slack for _, x in thinned)


# -- the end of the training ---------------------------------------------------------------------------------------


def test_the_run_itself_knows_best_when_it_ends(job: Watched) -> None:
    job.write("params.yaml", "runconfig:\n  num_epochs: 3\n")
    job.log(training_lines(100))
    assert trained(job).total is None
    assert trained(job).fraction is None
    job.write(
        "log.txt", "x" * 100_000 + "\ntrain step 90/690  loss 1\nIPU (emulated) train step 100/690  loss 1\n"
    )
    assert trained(job).total == 690


@pytest.mark.parametrize(
    ("runconfig", "total"),
    [
        ("max_steps: 500", 500),
        ("num_epochs: 3\n  steps_per_epoch: 100", 300),
        ("max_steps: 200\n  num_epochs: 3\n  steps_per_epoch: 100", 200),
        ("max_steps: null", None),
        ("max_steps: many", None),
        ("max_steps: true", None),
    ],
)
def test_else_params_say_it(job: Watched, runconfig: str, total: int | None) -> None:
    job.write("params.yaml", f"runconfig:\n  {runconfig}\n")
    job.log(training_lines(100))
    assert trained(job).total == total


def test_resolved_params_of_the_run_serve_where_the_job_has_none(job: Watched) -> None:
    (job.folder / "params.yaml").unlink()
    (job.model_dir / "train" / "params_train.yaml").write_text("runconfig: {max_steps: 77}")
    job.log(training_lines(50))
    assert trained(job).total == 77


@pytest.mark.parametrize("text", ["- [", "!!python/object/apply:os.system [touch /tmp/x]", "just text", ""])
def test_params_that_are_no_params_do_no_harm(job: Watched, text: str) -> None:
    job.write("params.yaml", text)
    job.log(training_lines(50))
    assert trained(job).total is None


# -- what else a page tells ----------------------------------------------------------------------------------------


def test_the_chain(job: Watched) -> None:
    job.done("validate", "compile")
    job.state("running", "train")
    assert [(link.name, link.state) for link in read(job).chain] == [
        ("validate", "done"),
        ("compile", "done"),
        ("train", "running"),
        ("eval", "waiting"),
    ]
    job.state("failed", "train", 2)
    assert [link.state for link in read(job).chain] == ["done", "done", "failed", "waiting"]
    assert read(job).status == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"state": 7, "restarts": "x", "status": null}'])
def test_a_state_that_cannot_be_read(job: Watched, content: str) -> None:
    job.write("state.json", content)
    progress = read(job)
    assert progress.state is None
    assert progress.restarts == 0
    assert progress.status is None
    assert len(progress.notes) == (0 if content.startswith('{"') else 1)


def test_an_earlier_run_in_the_folder_is_not_taken_for_this_job(job: Watched) -> None:
    job.log(line(s, 1.0, s, SUBMITTED - 5000 + s) for s in range(10, 101, 10))
    progress = read(job)
    assert progress.training is None
    assert progress.earlier_step == 100


def test_evaluations_on_the_way_and_at_the_end(job: Watched) -> None:
    on_the_way = line(100, 0.3, 60.0, NOW - 500, kind="eval")
    job.log([*training_lines(100), on_the_way])
    progress = read(job)
    assert progress.evaluation is not None
    assert progress.evaluation.step == 100
    assert progress.training is not None
    assert progress.training.evaluated == ((100, 0.3),)
    (job.model_dir / "eval").mkdir()
    last = line(100, 0.2, 1.0, NOW - 10, kind="eval")
    last["values"]["eval/accuracy"] = 0.9
    (job.model_dir / "eval" / "metrics.jsonl").write_text(json.dumps(last) + "\n")
    evaluation = read(job).evaluation
    assert evaluation is not None
    assert evaluation.values == {"loss": 0.2, "accuracy": 0.9}


def test_checkpoints_of_both_frameworks(job: Watched) -> None:
    job.checkpoint(50)
    (job.model_dir / "checkpoint_100").mkdir()  # not finished: no manifest
    (job.model_dir / "checkpoint_x").mkdir()
    os.utime(job.model_dir / "checkpoint_50" / "manifest.json", (NOW - 30, NOW - 30))
    progress = read(job)
    assert progress.checkpoint is not None
    assert progress.num_checkpoints == 1
    assert (progress.checkpoint.step, progress.checkpoint.size_bytes) == (50, 1002)
    assert progress.checkpoint.written == NOW - 30
    index = job.model_dir / "model.ckpt-200.index"
    index.write_bytes(b"12345")
    os.utime(index, (NOW, NOW))
    (job.model_dir / "model.ckpt-200.data-00000-of-00001").write_bytes(b"1" * 100)
    (job.model_dir / "model.ckpt-2000.data-00000-of-00001").write_bytes(b"1" * 100)  # has no index yet
    newest = list_seen(job.model_dir)[-1]
    assert (newest.step, newest.size_bytes) == (200, 105)
    assert newest.path.endswith("model.ckpt-200")


def test_the_newest_checkpoint_is_the_one_written_last(job: Watched) -> None:
    for step, age in ((500, 100), (200, 10)):
        job.checkpoint(step)
        os.utime(job.model_dir / f"checkpoint_{step}" / "manifest.json", (NOW - age, NOW - age))
    checkpoint = read(job).checkpoint
    assert checkpoint is not None
    assert checkpoint.step == 200


def test_what_is_no_attempt_is_left_out(job: Watched) -> None:
    job.write("attempts", "\x01 garbage \x7f\n2027-01-15T09:00:00Z node 250 train\nhalf\n")
    progress = read(job)
    assert [attempt.why for attempt in progress.attempts] == ["node"]
    assert any("attempts is damaged" in note for note in progress.notes)


def test_attempts_in_words(job: Watched) -> None:
    lines = [
        "2027-01-15T09:00:00Z requeue:signal 250 train",
        "2027-01-15T10:00:00Z retry:137 250 train",
        "2027-01-15T11:00:00Z requeue:preempted - compile",
        "2027-01-15T12:00:00Z node 500 train",
        "torn",
        "",
    ]
    job.write("attempts", "\n".join(lines))
    attempts = read(job).attempts
    assert [a.words for a in attempts] == [
        "saved before the time limit and requeued",
        "tried again after a kill (status 137)",
        "preempted and requeued",
        "the node was lost",
    ]
    assert [a.checkpoint_step for a in attempts] == [250, 250, None, 500]
    assert attempts[0].moment == "2027-01-15 09:00 UTC"
    assert attempts[2].step == "compile"


def _stream(step: int, wall: float, rates: dict[int, float], seconds: float) -> dict[str, object]:
    values = {f"worker_{n}/samples_per_second": rate for n, rate in rates.items()}
    return {
        "step": step,
        "kind": "stream",
        "values": {**values, "num_workers": float(len(rates))},
        "time_seconds": seconds,
        "wall_time": wall,
    }


def test_workers_and_those_that_are_gone(job: Watched) -> None:
    lines = training_lines(300, every=100)
    everybody = {n: 100.0 * n for n in (1, 2, 10)}
    lines.insert(1, _stream(100, NOW - 160, everybody, 50.0))  # type: ignore[arg-type]
    lines.insert(3, _stream(200, NOW - 110, {1: 150.0, 10: 900.0}, 100.0))  # type: ignore[arg-type]
    job.log(lines)
    workers = read(job).workers
    assert [(w.name, w.samples_per_second, w.is_alive) for w in workers] == [
        ("worker 1", 150.0, True),
        ("worker 2", 200.0, False),
        ("worker 10", 900.0, True),
    ]


def test_workers_of_an_earlier_attempt_are_forgotten(job: Watched) -> None:
    lines = [_stream(100, NOW - 500, {1: 1.0, 2: 1.0}, 50.0), _stream(200, NOW - 10, {1: 2.0}, 20.0)]
    job.log([*training_lines(300, every=100), *lines])  # type: ignore[list-item]
    assert [w.name for w in read(job).workers] == ["worker 1"]


def test_a_folder_where_a_file_should_be_is_told(job: Watched) -> None:
    job.metrics.mkdir()
    (job.folder / "attempts").mkdir()
    notes = read(job).notes
    assert any("metrics.jsonl cannot be read: is a directory" in note for note in notes)
    assert any("attempts cannot be read: is a directory" in note for note in notes)


def test_a_real_run_is_understood(tmp_path: Path) -> None:
    """What job/logs.py writes, and not only what these tests think it writes."""
    from portwright.job.console import Console
    from portwright.job.logs import RunLog

    with RunLog(
        tmp_path / "train", enable_summaries=False, step=0, console=Console("ERROR"), emulated="PopTorch 3.4"
    ) as log:
        log.write(
            "train", 2, {"loss": 0.5, "steps_per_second": 4.0, "samples_per_second": 32.0}, losses=[1.0, 0.5]
        )
        log.write("train", 4, {"loss": math.nan}, losses=[0.5, math.nan])
        log.write("eval", 4, {"loss": 0.25, "eval/accuracy": 0.5})
    progress = ProgressReader(tmp_path / "job", tmp_path).read()
    training = progress.training
    assert training is not None
    assert training.emulated == "PopTorch 3.4"
    assert training.step == 4
    assert training.non_finite_step == 4
    assert training.best_loss == 0.5
    assert progress.evaluation is not None
    assert progress.evaluation.values["accuracy"] == 0.5
