"""`--site local` for real: fc_mnist with two tasks that train together, whole, killed and cancelled; the weights are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_run import write_data, write_model

from portwright.launch.process_tree import living, marked

pytestmark = pytest.mark.timeout(900)

STEPS = 200
READ_SECONDS = 0.05  # a batch, so that a run can be met in its middle


class Desk:
    """A user's folder and his commands; names have spaces and quotes in them."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / 'it\'s "mine" $x'
        self.here.mkdir()
        write_model(self.here / "a model")
        self.data = write_data(self.here / "some data")
        state = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
        self.environ = {**os.environ, **state, "OMP_NUM_THREADS": "1"}

    def portwright(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "portwright", *words],
            env=self.environ, cwd=self.here, text=True, capture_output=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, name: str, model_dir: str, seconds: float = READ_SECONDS) -> Path:
        """The job's folder."""
        out = self.portwright(
            "submit", "a model", "--site", "local", "--ntasks", "2", "--name", name, "--model_dir", model_dir,
            "--steps", "train,eval", "--no-follow", "--json", "-D", f"train_input.data_dir={self.data}",
            "-D", f"eval_input.data_dir={self.data}", "-D", f"train_input.read_seconds={seconds}",
            "-D", f"runconfig.max_steps={STEPS}", "-D", "runconfig.checkpoint_steps=20",
        )  # fmt: skip
        return Path(json.loads(out)["folder"])

    def state(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.portwright("jobs", name, "--json"))
        return document

    def wait_end(self, name: str, folder: Path) -> str:
        self.portwright("logs", name, "-f")
        return str(self.state(name)["state"])

    def wait_checkpoint(self, model_dir: str, folder: Path) -> None:
        def reached() -> bool:
            return any((self.here / model_dir).glob("checkpoint_[0-9]*"))

        wait_until(reached, lambda: (folder / "log.txt").read_text())

    def weights(self, model_dir: str) -> dict[str, torch.Tensor]:
        files = sorted((self.here / model_dir / f"checkpoint_{STEPS}").glob("*.safetensors"))
        assert files
        return {f"{file.stem}/{name}": value for file in files for name, value in load_file(file).items()}


def wait_until(reached: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


def processes(folder: Path, rank: int | None = None) -> list[int]:
    found = marked("PORTWRIGHT_JOB_FOLDER", str(folder))
    return living(found if rank is None else [pid for pid in marked("RANK", str(rank)) if pid in found])


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_killed_and_cancelled_runs_end_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    whole = desk.submit("whole", "whole dir", 0.0)
    assert desk.wait_end("whole", whole) == "done"
    wanted = desk.weights("whole dir")

    killed = desk.submit("killed", "killed dir")
    desk.wait_checkpoint("killed dir", killed)
    for pid in processes(killed, rank=1):
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: "train begins" in (killed / "log.txt").read_text().partition("retry:")[2],
        lambda: (killed / "log.txt").read_text(),
    )
    wait_until(lambda: bool(processes(killed, rank=0)), lambda: (killed / "log.txt").read_text())
    record = json.loads((killed / "supervisor.json").read_text())
    script = [
        pid for pid in processes(killed)
        if Path(f"/proc/{pid}/cmdline").read_bytes() == os.fsencode(f"bash\0{killed}/job.sh\0")
    ]  # fmt: skip
    assert record["pid"] not in script
    for pid in script[:1]:
        os.kill(pid, signal.SIGKILL)  # as if the node had gone
    assert desk.wait_end("killed", killed) == "done"
    assert desk.state("killed")["progress"]["restarts"] >= 2
    assert_same(desk.weights("killed dir"), wanted)
    assert processes(killed) == []

    left = desk.submit("left", "left dir")
    desk.wait_checkpoint("left dir", left)
    desk.portwright("cancel", "left")
    assert desk.wait_end("left", left) == "cancelled"
    assert processes(left) == []
    again = desk.submit("again", "left dir", 0.0)
    assert desk.wait_end("again", again) == "done"
    assert_same(desk.weights("left dir"), wanted)
