"""job.sh and task.sh as bash runs them, with stand-in programs and without a scheduler."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from unit.launch.script_jobs import LocalJob

ODD_NAME = "a b'c\"d$HOME %j \\e#f;g&h*i ü~`id`"


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


def test_steps_run_in_order_and_end_done(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    assert job.run() == 0
    assert job.state["state"] == "done"
    assert job.state["status"] == 0
    assert len(job.ran("validate")) == len(job.ran("train")) == 1
    assert (job.folder / "steps" / "train.done").exists()
    assert job.log.index("validate begins") < job.log.index("train begins")


def test_a_failed_step_stops_the_chain_with_its_status(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    job.does("validate", "sys.exit(2)")
    assert job.run() == 2
    assert job.state == {**job.state, "state": "failed", "step": "validate", "status": 2}
    assert job.ran("train") == []
    assert "validate failed with status 2" in job.log
    assert "log.txt" in job.log


@pytest.mark.parametrize("status", [1, 3, 4, 126, 255])
def test_failures_of_the_program_are_not_tried_again(tmp_path: Path, status: int) -> None:
    job = LocalJob(tmp_path, names=("train",))
    job.does("train", f"sys.exit({status})")
    assert job.run() == status
    assert job.state["state"] == "failed"
    assert job.attempts == []


def test_a_program_of_ours_that_ends_with_0_before_its_end_has_failed(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, tells_end=True)
    told = "Path(os.environ['PORTWRIGHT_END_NOTE']).touch()"
    job.does("validate", told)
    job.does("train", f"{told} if (out / 'again').exists() else (out / 'again').touch() or os._exit(0)")
    assert job.run() == 1
    assert job.state == {**job.state, "state": "failed", "step": "train", "status": 1}
    assert not (job.folder / "steps" / "train.done").exists()
    assert "train ended with status 0 before it had said that it reached its end" in job.log
    assert job.run() == 0
    assert job.state["state"] == "done"
    (
        job.folder / "steps" / "train.done"
    ).unlink()  # a note of an earlier attempt says nothing of the next one
    job.does("train", "")
    assert job.run() == 1


def test_what_was_done_is_skipped_when_started_again(tmp_path: Path) -> None:
    job = LocalJob(tmp_path)
    job.does("train", "sys.exit(85 if not (out / 'again').exists() and not (out / 'again').touch() else 0)")
    assert job.run() == 85
    assert job.state["state"] == "requeued"
    assert job.attempts == [["requeue:85", "-", "train"]]
    assert job.run() == 0
    assert job.state["state"] == "done"
    assert job.state["restarts"] == 1
    assert len(job.ran("validate")) == 1
    assert len(job.ran("train")) == 2


def test_every_task_is_told_its_place(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), ntasks=3, environment={"PLAIN": "a 'b' $c"})
    assert job.run() == 0
    places = [job.ran("train", rank)[0]["env"] for rank in range(3)]
    assert [place["RANK"] for place in places] == ["0", "1", "2"]
    assert {place["WORLD_SIZE"] for place in places} == {"3"}
    assert {place["PORTWRIGHT_TASK_HOSTS"] for place in places} == {"localhost,localhost,localhost"}
    assert {place["PLAIN"] for place in places} == {"a 'b' $c"}
    assert {place["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] for place in places} == {"1"}
    assert len({place["MASTER_PORT"] for place in places}) == 1
    assert 20000 <= int(places[0]["MASTER_PORT"]) < 40000
    assert places[0]["MASTER_ADDR"] == "localhost"


def test_variables_of_one_s_own_reach_the_program_whatever_their_name(tmp_path: Path) -> None:
    given = {"MODEL_DIR": "/data/other", "PYTHON": "/nowhere", "JOB_FOLDER": "x", "MAX_RETRIES": "y"}
    job = LocalJob(tmp_path, environment=given, names=("train",))
    job.does("train", "sys.exit(85)")
    assert job.run(SAVE_SECONDS="z") == 85, job.log
    seen = job.ran("train")[0]["env"]
    assert {name: seen[name] for name in given} == given
    assert seen["SAVE_SECONDS"] == "z"


def test_odd_names_reach_the_program_unchanged(tmp_path: Path) -> None:
    root = tmp_path / ODD_NAME
    words = (ODD_NAME, "", "two\nlines", "--flag", "$(touch hacked)", "*", "~")
    job = LocalJob(root, names=("train",), folder=root / f"job {ODD_NAME}", words=words)
    assert job.run() == 0, job.log
    assert job.ran("train")[0]["argv"] == list(words)
    assert job.ran("train")[0]["cwd"] == str(root)
    assert not list(tmp_path.rglob("hacked"))


def test_a_killed_task_is_tried_again_until_nothing_moves(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), max_retries=2)
    job.does("train", "os.kill(os.getpid(), 9)")
    assert [job.run() for _ in range(3)] == [85, 85, 137]
    assert job.attempts == [["retry:137", "-", "train"]] * 2
    assert job.state["state"] == "failed"
    assert "without a new checkpoint: 3" in job.log


def test_a_new_checkpoint_counts_as_progress(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), max_retries=1)
    made = "(Path(sys.argv[1]).parent / 'model dir' / f'checkpoint_{len(list(out.parent.glob(\"model dir/*\")))}').mkdir()"
    job.does("train", f"{made}; os.kill(os.getpid(), 9)")
    job.job.model_dir.mkdir(exist_ok=True)
    assert [job.run() for _ in range(3)] == [85, 85, 85]
    assert [attempt[1] for attempt in job.attempts] == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["checkpoint_0012", "model.ckpt-12.index"])
def test_the_newest_checkpoint_is_noted(tmp_path: Path, name: str) -> None:
    job = LocalJob(tmp_path, names=("train",))
    job.job.model_dir.mkdir()
    for other in (name, "checkpoint_3", "checkpoint_9.partial", "checkpoint_x", "model.ckpt-5.index"):
        (job.job.model_dir / other).touch()
    job.does("train", "sys.exit(85)")
    assert job.run() == 85
    assert job.attempts == [["requeue:85", "12", "train"]]


def test_usr1_is_passed_on_and_the_job_asks_to_start_again(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, ntasks=2)
    wait = "(out / f'ready{rank}').touch()\nwhile not asked: time.sleep(0.02)\n"
    # One task saves longer than the other, and must not be ended meanwhile.
    job.does(
        "train", wait + "time.sleep(1 if rank == '0' else 0); (out / f'saved{rank}').touch(); sys.exit(85)"
    )
    process = job.start()
    _wait_for(job.out / "ready0")
    _wait_for(job.out / "ready1")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 85
    assert (job.out / "saved0").exists()
    assert (job.out / "saved1").exists()
    assert job.state["state"] == "requeued"
    assert job.attempts == [["requeue:signal", "-", "train"]]


def test_a_step_that_does_not_heed_usr1_is_left_in_time(tmp_path: Path) -> None:
    from portwright.launch.job import Resources

    job = LocalJob(tmp_path, names=("train",), resources=Resources(grace_seconds=2))
    job.does("train", "(out / 'ready').touch(); time.sleep(600)")
    process = job.start()
    _wait_for(job.out / "ready")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 85
    assert job.attempts == [["requeue:signal", "-", "train"]]
    assert "has not ended" in job.log
    os.killpg(process.pid, signal.SIGKILL)


def test_term_cancels_and_nothing_asks_to_start_again(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",))
    job.does("train", "(out / 'ready').touch()\nwhile not asked: time.sleep(0.02)\nsys.exit(85)")
    process = job.start()
    _wait_for(job.out / "ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert job.state["state"] == "cancelled"
    assert job.attempts == []


def test_workers_may_die_and_task_0_counts(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), ntasks=3, tasks="stream")
    job.does("train", "os.kill(os.getpid(), 9) if rank == '1' else time.sleep(0.5)")
    assert job.run() == 0
    assert job.state["state"] == "done"
    job = LocalJob(tmp_path / "other", names=("train",), ntasks=2, tasks="stream")
    job.does("train", "os.kill(os.getpid(), 9) if rank == '0' else None")
    assert job.run() == 85
    assert job.attempts == [["retry:137", "-", "train"]]


def test_a_worker_that_was_told_to_end_asks_for_nothing(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), ntasks=2, tasks="stream")
    job.does("train", "sys.exit(0 if rank == '0' else 85)")
    assert job.run() == 0
    assert job.state["state"] == "done"
    assert job.attempts == []


def test_the_stream_key_is_new_each_time_and_private(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), ntasks=2, tasks="stream")
    job.does("train", "print(open(os.environ['PORTWRIGHT_STREAM_KEY_FILE']).read() and 'has a key')")
    keys = []
    for _ in range(2):
        (job.folder / "steps" / "train.done").unlink(missing_ok=True)
        assert job.run() == 0
        keys.append((job.folder / "stream.key").read_text().strip())
    assert keys[0] != keys[1]
    assert all(len(key) == 44 for key in keys)
    assert (job.folder / "stream.key").stat().st_mode & 0o777 == 0o600
    assert "has a key" in job.log
    assert not any(key in job.log for key in keys)


@pytest.mark.parametrize(
    ("line", "is_tried_again"),
    [
        ("error: process 2 on n1 has died (killed by signal 9) at step 4. Its own output says why.", True),
        ("RuntimeError: [transport/tcp/pair.cc] Connection closed by peer [10.0.0.1]:4711", True),
        ("grpc._channel._Rendezvous: StatusCode.UNAVAILABLE", True),
        ("ValueError: Connection of two layers is wrong", False),
        ("error: process 1 failed: no such column\\nRuntimeError: Connection reset by peer", False),
    ],
)
def test_lost_connections_are_tried_again(tmp_path: Path, line: str, is_tried_again: bool) -> None:
    job = LocalJob(tmp_path, names=("train",))
    job.does("train", f"print({line!r}); sys.exit(1)".replace("\\\\n", "\\n"))
    assert job.run() == (85 if is_tried_again else 1)
    # What an earlier step or attempt said does not count.
    (job.folder / "steps" / "train.done").unlink(missing_ok=True)
    job.does("train", "sys.exit(1)")
    assert job.run() == 1


def test_an_attempt_that_vanished_is_noted(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",))
    job.does("train", "(out / 'ready').touch(); time.sleep(600)")
    process = job.start()
    _wait_for(job.out / "ready")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    job.does("train", "pass")
    assert job.run() == 0
    assert job.attempts == [["node", "-", "train"]]
    assert job.state["restarts"] == 1


def test_a_new_submission_forgets_old_attempts(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), max_retries=0)
    job.does("train", "sys.exit(85)")
    assert job.run() == 85
    assert job.state["state"] == "failed"
    assert job.run() == 85
    assert job.state["state"] == "failed"
    assert job.attempts == []


def test_whatever_ends_the_script_is_written_down(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, names=("train",), workdir=tmp_path / "gone")
    assert job.run() != 0
    assert job.state["state"] == "failed"
    assert "gone" in job.log


def test_values_that_are_passed_are_in_no_file(tmp_path: Path) -> None:
    job = LocalJob(tmp_path, ntasks=2, passed=("TOKEN",))
    job.does("train", "assert os.environ['TOKEN'] == 'planted-' + 'value'")
    assert job.run(TOKEN="planted-value") == 0
    for path in job.folder.rglob("*"):
        assert not path.is_file() or "planted-value" not in path.read_text(errors="replace"), path
