"""The record of a run: valid whatever is logged, whenever the process dies, wherever it resumes."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.job.logs import Console, RunLog, read_metrics


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(said: io.StringIO) -> Console:
    return Console(stream=said)


def _open(folder: Path, console: Console, *, step: int | None = 0, summaries: bool = False) -> RunLog:
    return RunLog(folder, enable_summaries=summaries, step=step, console=console)


def _steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder)]


def test_a_line_says_step_kind_values_and_time(tmp_path: Path, console: Console) -> None:
    before = time.time()
    with _open(tmp_path / "model_dir" / "train", console) as log:
        log.write("train", 10, {"loss": 0.5, "learning_rate": 1e-3})
        log.write("eval", 10, {"eval/accuracy": 0.97})
    lines = [
        json.loads(line) for line in (tmp_path / "model_dir/train/metrics.jsonl").read_text().splitlines()
    ]
    assert [(x["step"], x["kind"], x["values"]) for x in lines] == [
        (10, "train", {"loss": 0.5, "learning_rate": 1e-3}),
        (10, "eval", {"eval/accuracy": 0.97}),
    ]
    assert 0 <= lines[0]["time_seconds"] <= lines[1]["time_seconds"] < 60
    assert before - 1 <= lines[0]["wall_time"] <= time.time() + 1


def _reject(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@given(st.dictionaries(st.text(max_size=8), st.floats(), max_size=5), st.integers(0, 2**62))
@settings(max_examples=50, deadline=None)
def test_any_name_and_value_is_valid_json_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, float], step: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    with _open(folder, Console(stream=io.StringIO()), summaries=True) as log:
        log.write("train", step, values)
    json.loads((folder / "metrics.jsonl").read_text(), parse_constant=_reject)
    (line,) = read_metrics(folder)
    assert line["step"] == step
    assert repr(line["values"]) == repr(values)


def test_values_that_are_not_finite_are_named(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console) as log:
        log.write("train", 1, {"loss": math.nan, "norm": math.inf, "low": -math.inf, "lr": 0.1})
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=_reject)
    assert line["values"] == {"loss": None, "norm": None, "low": None, "lr": 0.1}
    assert line["non_finite"] == {"loss": "nan", "norm": "inf", "low": "-inf"}
    assert "non_finite" not in read_metrics(tmp_path)[0]


def test_a_name_that_is_not_unicode_is_logged_all_the_same(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console, summaries=True) as log:
        log.write("train", 1, {"\udcff": 1.0})
    assert read_metrics(tmp_path)[0]["values"] == {"\udcff": 1.0}


def test_what_cannot_be_a_number_fails_where_it_is_logged(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console) as log:
        with pytest.raises((TypeError, ValueError)):
            log.write("train", 1, {"loss": "high"})  # type: ignore[dict-item]
        log.write("train", 2, {"loss": 1})
    assert _steps(tmp_path) == [2]


def test_flush_puts_all_lines_into_the_file(tmp_path: Path, console: Console) -> None:
    log = _open(tmp_path, console)
    for step in range(1000):
        log.write("train", step, {"loss": 1.0})
    log.flush()
    assert _steps(tmp_path) == list(range(1000))
    log.close()
    log.close()
    log.flush()
    with pytest.raises(ValueError, match="closed"):
        log.write("train", 1, {})


# -- resuming --------------------------------------------------------------------------------------------------


def test_a_resumed_run_drops_the_steps_that_come_again(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console) as log:
        for step in (10, 20, 30, 40):
            log.write("train", step, {"loss": 1.0})
            log.write("eval", step, {"loss": 2.0})
    with _open(tmp_path, console, step=20) as log:
        assert _steps(tmp_path) == [10, 10, 20, 20]
        log.write("train", 30, {"loss": 3.0})
    assert _steps(tmp_path) == [10, 10, 20, 20, 30]


def test_an_evaluation_drops_nothing(tmp_path: Path, console: Console) -> None:
    for step in (500, 100):
        with _open(tmp_path, console, step=None) as log:
            log.write("eval", step, {"loss": 1.0})
    assert _steps(tmp_path) == [500, 100]


@pytest.mark.parametrize(
    ("tail", "steps"),
    [
        (b'{"step": 2, "kind": "tr', [1]),
        (b'{"step": 2, "values": {}}', [1, 2]),  # whole but for its line break
        (b"\0\0\0\0", [1]),
        (b"\0\0\n", [1]),
        (b"\xff\xfe", [1]),
        (b"12", [1]),
    ],
)
def test_a_torn_last_line_is_read_over_and_repaired(
    tmp_path: Path, console: Console, said: io.StringIO, tail: bytes, steps: list[int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "kind": "train", "values": {"loss": 1.0}}\n' + tail)
    assert [line["step"] for line in read_metrics(path)] == steps
    with _open(tmp_path, console, step=5) as log:
        log.write("train", 6, {"loss": 1.0})
    assert _steps(tmp_path) == [*steps, 6]
    assert said.getvalue() == ""


def test_a_file_that_is_not_ours_is_kept_aside(tmp_path: Path, console: Console, said: io.StringIO) -> None:
    path = tmp_path / "metrics.jsonl"
    foreign = b'hello\n{"step": 1, "values": {}}\n[1]\n{"step": "x", "values": {}}\n'
    for number in (1, 2):
        path.write_bytes(foreign)
        with pytest.raises(UserError, match=r"Line 1 of .*metrics.jsonl is no metrics line"):
            read_metrics(path)
        _open(tmp_path, console, step=5).close()
        assert _steps(tmp_path) == [1]
        assert (tmp_path / f"metrics.damaged-{number}.jsonl").read_bytes() == foreign
        assert f"3 lines of {path} are no metrics lines" in said.getvalue()


def test_reading_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read .*metrics.jsonl: no such file"):
        read_metrics(tmp_path)


KILLED = """
    import io, sys
    from pathlib import Path
    from portwright.job.logs import Console, RunLog
    log = RunLog(Path(sys.argv[1]), enable_summaries=True, step=int(sys.argv[2]), console=Console(stream=io.StringIO()))
    step = int(sys.argv[2])
    while True:
        step += 1
        log.write("train", step, {"loss": 1.0, "name " * 20: 2.0})
        if step % 50 == 0:
            log.flush()
            print(step, flush=True)
"""


def test_a_killed_run_leaves_a_file_that_can_be_read_and_continued(tmp_path: Path) -> None:
    resume_at = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(resume_at)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(3):
            flushed = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        steps = _steps(tmp_path)
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= flushed
        resume_at = flushed - 20
    assert _scalars(tmp_path)["loss"][0] == (1, 1.0)


# -- TensorBoard -----------------------------------------------------------------------------------------------


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_training_and_evaluation(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console, summaries=True) as log:
        log.write("train", 10, {"loss": 0.5, "learning_rate": 0.25})
        log.write("train", 20, {"loss": math.nan, "learning_rate": 0.125})
        log.write("eval", 20, {"loss": 2.0, "eval/accuracy": 0.75})
    scalars = _scalars(tmp_path)
    assert scalars.keys() == {"loss", "learning_rate", "eval/loss", "eval/accuracy"}
    assert scalars["learning_rate"] == [(10, 0.25), (20, 0.125)]
    assert scalars["eval/loss"] == [(20, 2.0)]
    assert math.isnan(scalars["loss"][1][1])


def test_losses_of_the_steps_between_are_in_the_json_alone(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console, summaries=True) as log:
        log.write("train", 3, {"loss": 1.0}, losses=[3.0, math.inf, 1.0])
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=_reject)
    assert read_metrics(tmp_path)[0]["losses"] == [3.0, None, 1.0]
    assert _scalars(tmp_path) == {"loss": [(3, 1.0)]}


def test_tensorboard_forgets_the_steps_that_come_again(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console, summaries=True) as log:
        for step in (10, 20, 30, 40):
            log.write("train", step, {"loss": 1.0})
    with _open(tmp_path, console, step=20, summaries=True) as log:
        log.write("train", 25, {"loss": 3.0})
    assert _scalars(tmp_path)["loss"] == [(10, 1.0), (20, 1.0), (25, 3.0)]


def test_event_files_sort_in_the_order_of_runs_whatever_the_clock_says(
    tmp_path: Path, console: Console
) -> None:
    (tmp_path / "events.out.tfevents.4000000000.host.99999").write_bytes(b"")  # of a clock that runs ahead
    for value in (1.0, 2.0, 3.0):
        with _open(tmp_path, console, step=0, summaries=True) as log:
            log.write("train", 1, {"loss": value})
    names = sorted(path.name for path in tmp_path.glob("events*"))
    assert [name.split(".")[3] for name in names] == ["4000000000", "4000000001", "4000000002", "4000000003"]
    assert _scalars(tmp_path)["loss"] == [(1, 3.0)]


def test_no_summaries_no_event_file(tmp_path: Path, console: Console) -> None:
    with _open(tmp_path, console) as log:
        log.write("train", 1, {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_summaries_load_neither_tensorflow_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise AssertionError('TensorFlow was imported')")
    script = """
        import io, sys
        from pathlib import Path
        from portwright.job.logs import Console, RunLog
        with RunLog(Path(sys.argv[1]), enable_summaries=True, step=0, console=Console(stream=io.StringIO())) as log:
            log.write("train", 1, {"loss": 1.0})
        assert "torch" not in sys.modules
    """
    arguments = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "run")]
    done = subprocess.run(arguments, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _scalars(tmp_path / "run")["loss"] == [(1, 1.0)]


def test_without_tensorboard_the_cure_is_said(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(UserError, match=r"set runconfig\.enable_summaries to False"):
        _open(tmp_path, console, summaries=True)


# -- disks that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summaries", [False, True])
def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path, console: Console, summaries: bool) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        _open(tmp_path / "file" / "train", console, summaries=summaries)


LIMITED = """
    import io, resource, sys, time
    from pathlib import Path
    from portwright.errors import UserError
    from portwright.job.logs import Console, RunLog
    said = io.StringIO()
    log = RunLog(Path(sys.argv[1]), enable_summaries=True, step=0, console=Console(stream=said))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    errors = []
    for step in range(1000):
        try:
            log.write("train", step, {"loss": 1.0})
            time.sleep(0.001)
        except UserError as error:
            errors.append(str(error))
    CLOSE
    print(len(errors), errors, said.getvalue())
"""


@pytest.mark.parametrize("close", ["log.close()", "log.flush(); log.close()"])
def test_a_file_that_may_not_grow_is_one_error(tmp_path: Path, close: str) -> None:
    script = textwrap.dedent(LIMITED).replace("CLOSE", close)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ['Cannot write ")
    assert "metrics.jsonl: file too large." in done.stdout
    steps = _steps(tmp_path)  # what fitted is there, and the torn line does not matter
    assert steps
    assert steps == list(range(len(steps)))


def _failing_log(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> RunLog:
    log = _open(tmp_path, console)

    class Full:
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    log._file.close()
    monkeypatch.setattr(log, "_file", Full())
    log.write("train", 1, {"loss": 1.0})
    return log


def test_a_full_disk_is_told_when_the_log_is_closed_at_the_latest(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _failing_log(tmp_path, console, monkeypatch)
    with pytest.raises(UserError, match=r"no space left on device\. Free space"):
        log.close()
    log.close()


def test_a_full_disk_does_not_hide_the_error_that_ended_the_run(
    tmp_path: Path, console: Console, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError, match="the real one"), _failing_log(tmp_path, console, monkeypatch):
        raise KeyError("the real one")
    assert said.getvalue().startswith("warning: Cannot write ")


def test_whatever_fails_in_the_thread_is_raised_and_hangs_nothing(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _open(tmp_path, console)

    def fail(lines: Iterator[Any]) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(log, "_write_lines", fail)
    log.write("train", 1, {})
    with pytest.raises(RuntimeError, match="a fault of ours"):
        log.flush()
    log.close()
