"""A job's life as a user sees it, on a real SLURM; its run.py behaves as ours does and needs no framework."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.timeout(600)

RUN = """\
import os, pathlib, signal, sys, time
words = sys.argv[1:]
model_dir = pathlib.Path(words[words.index("--model_dir") + 1])
kind = "validate" if "--validate_only" in words else words[words.index("--mode") + 1]
here = pathlib.Path(__file__).parent
def save(number, frame):
    (model_dir / "checkpoint_5").mkdir(parents=True, exist_ok=True)
    print("saved", flush=True)
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
print(f"{kind} is task {os.environ['RANK']} of {os.environ['WORLD_SIZE']} in {os.getcwd()}", flush=True)
while kind == "train" and (here / "wait").exists():
    time.sleep(0.05)
if (here / f"{kind}.fails").exists():
    sys.exit(int((here / f"{kind}.fails").read_text()))
pathlib.Path(os.environ["PORTWRIGHT_END_NOTE"]).touch()
"""
PARAMS = """\
train_input: {}
eval_input: {}
optimizer: {optimizer_type: sgd, learning_rate: 0.1}
"""
SITE = """\
scheduler = "slurm"
target = "CPU"
tasks = "parallel"
[job]
account = "none"
time = "10"
ntasks = 3
nodes = 2
grace_seconds = 20
"""


class Desk:
    """A user's folder and his commands."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.here = folder / 'it\'s "my" 50% $place ü'
        self.model = self.here / "a model"
        (self.model / "configs").mkdir(parents=True)
        (self.model / "run.py").write_text(RUN)
        (self.model / "configs" / "params.yaml").write_text(PARAMS)
        sites = folder / "config" / "portwright" / "sites"
        sites.mkdir(parents=True)
        (sites / "mine.toml").write_text(SITE)
        self.environ = {
            **cluster.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "COLUMNS": "120",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "portwright", *words],
            env=self.environ, cwd=self.here, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            # As in a terminal: what a script starts in the background, such as this suite in CI, hears no Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **more,
        )  # fmt: skip

    def run(self, *words: str, status: int = 0) -> str:
        process = self.start(*words)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == status, out
        return out

    def submit(self, *words: str) -> dict[str, Any]:
        """Without following; the document of it."""
        process = subprocess.run(
            [sys.executable, "-m", "portwright", "submit", "a model", "--site", "mine", "--no-follow", "--json", *words],
            env=self.environ, cwd=self.here, text=True, capture_output=True, timeout=300,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
        document: dict[str, Any] = json.loads(process.stdout)
        return document

    def state(self, name: str) -> str:
        process = subprocess.run(
            [sys.executable, "-m", "portwright", "jobs", name, "--json"],
            env=self.environ, cwd=self.here, text=True, capture_output=True, timeout=300,
        )  # fmt: skip
        return str(json.loads(process.stdout)["state"])

    def log(self, name: str) -> str:
        return (self.here / "portwright_jobs" / name / "log.txt").read_text()

    def wait(self, reached: Callable[[], Any], told: Callable[[], str]) -> None:
        deadline = time.monotonic() + 300
        while not reached():
            assert time.monotonic() < deadline, told()
            time.sleep(0.2)

    def wait_log(self, name: str, text: str, count: int = 1) -> None:
        self.wait(lambda: self.log(name).count(text) >= count, lambda: self.log(name))


@pytest.fixture
def desk(tmp_path: Path, cluster: SlurmCluster) -> Iterator[Desk]:
    desk = Desk(tmp_path, cluster)
    yield desk
    (desk.model / "wait").unlink(missing_ok=True)
    for path in (desk.here / "portwright_jobs").glob("*/scheduler_id"):
        cluster.run("scancel", path.read_text().strip(), check=False)


def test_submitted_followed_and_read(desk: Desk) -> None:
    out = desk.run("submit", "a model", "--site", "mine")
    log = desk.log("a-model-1")
    tasks = sorted(line.partition(" in ")[0] for line in log.splitlines() if " is task " in line)
    assert tasks == [
        "eval is task 0 of 1",
        *(f"train is task {n} of 3" for n in range(3)),
        "validate is task 0 of 1",
    ]
    assert str(desk.here) in log  # relative paths of params begin there
    job_id = (desk.here / "portwright_jobs" / "a-model-1" / "scheduler_id").read_text().strip()
    assert f"SLURM job {job_id}" in out
    assert "done" in desk.run("jobs", job_id)
    assert desk.run("logs", job_id) == log
    assert "train is task" in desk.run("logs", "a-model-1", "--step", "train", "-f")
    listed = json.loads(desk.run("jobs", "--json"))["jobs"]
    assert [(job["name"], job["state"], job["status"]) for job in listed] == [("a-model-1", "done", 0)]
    assert "ended already" in desk.run("cancel", "a-model-1")


def test_a_failed_step_gives_the_command_its_status(desk: Desk) -> None:
    (desk.model / "validate.fails").write_text("2")
    out = desk.run("submit", "a model", "--site", "mine", status=2)
    assert "validate" in out
    assert "train is task" not in desk.log("a-model-1")
    assert desk.state("a-model-1") == "failed"


def test_one_that_waits_tells_its_place_and_leaves_the_queue(desk: Desk) -> None:
    first = desk.submit("--flag=--begin=now+1hour", "--name", "first")
    assert desk.state("first") == "pending"
    assert "waits in the queue" in desk.run("logs", "first")
    refused = desk.run("submit", "a model", "--site", "mine", status=2)
    assert "the job first uses" in refused
    second = desk.submit("--flag=--begin=now+1hour", "--model_dir", "other dir", "--name", "second")
    assert second["scheduler_id"] != first["scheduler_id"]
    following = desk.start("logs", "second", "-f")
    assert following.stdout is not None
    assert "waits in the queue at place" in following.stdout.readline()
    out = desk.run("cancel", "first", second["scheduler_id"])
    assert out.count("taken from the queue") == 2
    rest, _ = following.communicate(timeout=120)
    assert "cancelled" in rest
    assert [desk.state(name) for name in ("first", "second")] == ["cancelled", "cancelled"]


def test_logs_follow_across_a_requeue(desk: Desk) -> None:
    (desk.model / "wait").touch()
    job_id = desk.submit()["scheduler_id"]
    following = desk.start("logs", "a-model-1", "-f")
    desk.wait_log("a-model-1", "train is task", 3)
    desk.cluster.run("scancel", "--batch", "--signal=USR1", job_id)  # as before the time limit
    desk.wait_log("a-model-1", "train is task", 6)
    assert desk.state("a-model-1") == "running"
    (desk.model / "wait").unlink()
    out, _ = following.communicate(timeout=300)
    assert desk.log("a-model-1") in out
    assert out.count("validate is task") == 1
    assert out.count("saved") == 3
    document = json.loads(desk.run("jobs", "a-model-1", "--json"))
    assert document["state"] == "done"
    assert document["progress"]["restarts"] == 1


def test_a_cancelled_job_is_not_requeued(desk: Desk) -> None:
    (desk.model / "wait").touch()
    job_id = desk.submit()["scheduler_id"]
    desk.wait_log("a-model-1", "train is task", 3)
    assert "half a minute" in desk.run("cancel", "a-model-1")
    assert desk.cluster.wait_state(job_id, {"CANCELLED"}) == "CANCELLED"
    desk.wait(lambda: desk.state("a-model-1") == "cancelled", lambda: desk.log("a-model-1"))
    assert desk.log("a-model-1").count("train begins") == 1
    (desk.model / "wait").unlink()
    assert "done" in desk.run("submit", "a model", "--site", "mine")


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(desk: Desk) -> None:
    (desk.model / "wait").touch()
    following = desk.start("submit", "a model", "--site", "mine")
    desk.wait(
        lambda: (desk.here / "portwright_jobs" / "a-model-1" / "log.txt").is_file(), lambda: "not submitted"
    )
    desk.wait_log("a-model-1", "train is task", 3)
    following.send_signal(signal.SIGINT)
    out, _ = following.communicate(timeout=120)
    assert following.returncode == 130
    assert "portwright cancel a-model-1" in out
    assert desk.state("a-model-1") == "running"
    (desk.model / "wait").unlink()
    assert "done" in desk.run("jobs", "a-model-1", "-f")


def test_what_slurm_refuses_is_told_and_can_be_submitted_again(desk: Desk) -> None:
    out = desk.run("submit", "a model", "--site", "mine", "--gres", "nothing:1", "--force", status=2)
    assert "a-model-1 was not submitted" in out
    assert "--gres" in out
    assert desk.state("a-model-1") == "not taken"
    assert "not submitted" in desk.log("a-model-1")
    assert "done" in desk.run("submit", "a model", "--site", "mine", "--steps", "validate")
    assert desk.state("a-model-2") == "done"


def test_two_at_once_take_two_names(desk: Desk) -> None:
    started = [
        desk.start(
            "submit",
            "a model",
            "--site",
            "mine",
            "--no-follow",
            "--steps",
            "validate",
            "--model_dir",
            f"m{n}",
        )
        for n in range(3)
    ]
    for process in started:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
    assert sorted(path.name for path in (desk.here / "portwright_jobs").iterdir()) == [
        f"a-model-{n}" for n in (1, 2, 3)
    ]


def test_a_shell_on_a_node(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-m", "portwright", "shell", "--site", "mine", "--time", "5", "--env", "GREETING=hello you"],
        env=desk.environ, cwd=desk.here, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    heard = bytearray()

    def listen() -> None:
        while True:
            try:
                heard.extend(os.read(ours, 4096))
            except OSError:  # the other end is closed
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    os.write(ours, b'echo "on $SLURMD_NODENAME: $GREETING" "$((6 * 7))"; exit 3\n')
    assert shell.wait(120) == 3
    listener.join(10)
    os.close(ours)
    assert f"on {desk.cluster.prefix}-" in heard.decode(errors="replace")
    assert "hello you 42" in heard.decode(errors="replace")
