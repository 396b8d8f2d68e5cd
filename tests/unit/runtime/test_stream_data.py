"""Tasks that read for the one that trains: whoever reads, the weights are those of a run alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from portwright.errors import UserError
from portwright.job.model_list import make_model_folder
from portwright.stream.roles import read_role, tf_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream") / "my model"
    make_model_folder(folder, "pytorch", "fc_mnist")
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def start(model: Path, model_dir: Path, rank: int, size: int, port: int, *more: str) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    words = [sys.executable, "run.py", "CPU", "--mode", "train", "--params", "configs/params.yaml"]
    words += ["-o", str(model_dir), "--json", *more]
    if size > 1:
        words.append("--stream_data")
    return subprocess.Popen(
        words, cwd=model, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def launch(model: Path, model_dir: Path, size: int, *more: str) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [start(model, model_dir, rank, size, port, *more) for rank in range(size)]


def end(tasks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    return [(task.returncode, out, err) for task in tasks for out, err in [task.communicate(timeout=120)]]


def weights(model_dir: Path, step: int) -> dict[str, bytes]:
    found = {}
    for name in ("model", "optimizer", "rng"):
        for key, array in load_file(model_dir / f"checkpoint_{step}" / f"{name}.safetensors").items():
            found[f"{name}/{key}"] = array.tobytes()
    return found


STEPS = ("--max_steps", "2400", "-D", "runconfig.checkpoint_steps=80")


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    ((status, _, err),) = end(launch(model, folder, 1, *STEPS))
    assert status == 0, err
    return weights(folder, 2400)


def test_workers_read_what_a_run_alone_reads(
    model: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    ended = end(launch(model, tmp_path, 3, *STEPS))
    assert [status for status, _, _ in ended] == [0, 0, 0], ended
    outcome = json.loads(ended[0][1])
    assert sum(each["samples"] for each in outcome["workers"]) >= 2400 * 50
    assert {each["name"] for each in outcome["workers"]} <= {"worker 1", "worker 2", "coordinator"}
    assert [out for _, out, _ in ended[1:]] == ["", ""], "one document, by the coordinator"
    assert weights(tmp_path, 2400) == undisturbed
    kinds = [
        json.loads(line)["kind"] for line in (tmp_path / "train" / "metrics.jsonl").read_text().splitlines()
    ]
    assert "stream" in kinds
    assert not (tmp_path / ".stream_key").exists() or (tmp_path / ".stream_key").stat().st_mode & 0o077 == 0


def wait_for_checkpoint(model_dir: Path, tasks: list[subprocess.Popen[str]]) -> None:
    for _ in range(1200):
        if any(model_dir.glob("checkpoint_*")):
            return
        if tasks[0].poll() is not None:
            raise AssertionError(end(tasks))
        time.sleep(0.05)
    raise AssertionError("no checkpoint came")


def test_a_signal_saves_and_the_same_command_goes_on(
    model: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    tasks = launch(model, tmp_path, 3, *STEPS)
    wait_for_checkpoint(tmp_path, tasks)
    tasks[2].kill()
    for task in tasks[:2]:
        task.send_signal(signal.SIGUSR1)
    ended = end(tasks)
    assert [status for status, _, _ in ended] == [85, 0, -signal.SIGKILL], ended
    ended = end(launch(model, tmp_path, 2, *STEPS))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert weights(tmp_path, 2400) == undisturbed


def test_a_dead_coordinator_ends_its_workers_and_the_run_goes_on(
    model: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    tasks = launch(model, tmp_path, 2, *STEPS)
    wait_for_checkpoint(tmp_path, tasks)
    tasks[0].kill()
    ended = end(tasks)
    assert ended[1][0] == 85, ended
    assert "is gone" in ended[1][2]
    ((status, _, err),) = end(launch(model, tmp_path, 1, *STEPS))
    assert status == 0, err
    assert weights(tmp_path, 2400) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_without_a_coordinator_obeys_a_signal(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    worker = start(model, tmp_path, 1, 2, free_port())
    while not catches(worker, number):
        assert worker.poll() is None, worker.communicate()
        time.sleep(0.05)
    worker.send_signal(number)
    out, err = worker.communicate(timeout=30)
    assert worker.returncode == 85, (out, err)


def catches(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_worker_that_comes_late_is_told_of_a_coordinator_that_failed(model: Path, tmp_path: Path) -> None:
    port = free_port()
    coordinator = start(model, tmp_path, 0, 2, port, "--checkpoint_path", "none_such")
    assert coordinator.stderr
    said = ""
    while "waiting for 1 worker(s)" not in said:
        said = coordinator.stderr.readline()
        assert said, coordinator.communicate()
    (status, _, err), (other, _, other_err) = end([coordinator, start(model, tmp_path, 1, 2, port)])
    assert "none_such" in err
    assert (status, other) == (2, 0), (err, other_err)


def test_what_has_no_use_for_it_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs at least two tasks"):
        read_role({})
    ((status, out, _),) = end([start(model, tmp_path, 0, 1, free_port(), "--stream_data", "--validate_only")])
    assert status == 2
    assert "for training" in json.loads(out)["error"]


def test_the_first_task_is_elected() -> None:
    environ = {"RANK": "2", "WORLD_SIZE": "7", "MASTER_ADDR": "node-1", "MASTER_PORT": "20000"}
    role = read_role(environ)
    assert (role.is_coordinator, role.num_workers, role.address) == (False, 6, "node-1:20001")
    assert read_role({**environ, "RANK": "0"}).is_coordinator
    config = tf_config(environ)
    assert config["cluster"]["chief"] == ["node-1:23111"]
    assert config["cluster"]["worker"] == [f"node-1:{port}" for port in range(23112, 23118)]
    assert config["task"] == {"type": "worker", "index": 1}
    hosts = ",".join(f"sdf-{number}" for number in range(7))
    assert tf_config({**environ, "PORTWRIGHT_TASK_HOSTS": hosts})["cluster"]["worker"][0] == "sdf-1:23112"
    with pytest.raises(UserError, match="2 hosts for 7 tasks"):
        tf_config({**environ, "PORTWRIGHT_TASK_HOSTS": "a,b"})
    with pytest.raises(UserError, match="MASTER_PORT"):
        read_role({**environ, "MASTER_PORT": "x"})
