"""kill -9 at random moments, then resume: the weights are those of the run that was never killed."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from portwright.runtime.checkpoint import list_checkpoints, verify_checkpoint

# Kills its own process some time after a given step has begun: in forward, backward, an update, while a checkpoint is
# being taken, or while the writer's thread writes one.
DEADLY_MODEL = """
import os, signal, threading, time
import fc_model

class MNISTModel(fc_model.MNISTModel):
    calls = 0

    def __call__(self, data):
        MNISTModel.calls += 1
        if MNISTModel.calls == int(os.environ.get("KILL_AFTER_CALLS", "0")):
            delay = float(os.environ["KILL_DELAY"])
            def kill():
                time.sleep(delay)
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=kill, daemon=True).start()
        return super().__call__(data)
"""
ARGUMENTS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "400",
    "-D", "runconfig.checkpoint_steps=10", "-D", "runconfig.log_steps=7",
)  # fmt: skip


@pytest.fixture
def deadly_folder(model_folder: Path) -> Path:
    (model_folder / "model.py").rename(model_folder / "fc_model.py")
    (model_folder / "model.py").write_text(DEADLY_MODEL)
    return model_folder


def test_ten_kills_change_nothing(deadly_folder: Path, run_script) -> None:
    undisturbed = run_script(deadly_folder, *ARGUMENTS, "--model_dir", "whole")
    assert undisturbed.returncode == 0, undisturbed.stderr

    rng = random.Random(int(os.environ.get("PORTWRIGHT_SEED", "20261115")))
    num_kills = 0
    for _ in range(10):
        env = {"KILL_AFTER_CALLS": str(rng.randint(1, 38)), "KILL_DELAY": str(rng.random() * 0.03)}
        killed = run_script(deadly_folder, *ARGUMENTS, "--model_dir", "killed", env=env)
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        num_kills += killed.returncode == -signal.SIGKILL
        for checkpoint in list_checkpoints(deadly_folder / "killed"):
            assert verify_checkpoint(checkpoint.path) == [], "a torn checkpoint took a final name"
    assert num_kills == 10, "the run ended before it could be killed ten times"
    finished = run_script(deadly_folder, *ARGUMENTS, "--model_dir", "killed")
    assert finished.returncode == 0, finished.stderr

    for name in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
        a = load_file(deadly_folder / "whole" / "checkpoint_400" / name)
        b = load_file(deadly_folder / "killed" / "checkpoint_400" / name)
        assert a.keys() == b.keys()
        assert all(a[key].equal(b[key]) for key in a), name
    logs = [
        (deadly_folder / d / "train" / "metrics.jsonl").read_text().splitlines() for d in ("whole", "killed")
    ]
    steps = [[line.split('"step": ')[1].split(",")[0] for line in log] for log in logs]
    assert steps[0] == steps[1], "the log of the killed run repeats or lacks steps"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_save_and_say_so(deadly_folder: Path, run_script, number: signal.Signals) -> None:
    (deadly_folder / "model.py").write_text(
        DEADLY_MODEL.replace("signal.SIGKILL", f"{int(number)}").replace("time.sleep(delay)", "pass")
    )
    stopped = run_script(
        deadly_folder, *ARGUMENTS, "--model_dir", "stopped", env={"KILL_AFTER_CALLS": "33", "KILL_DELAY": "0"}
    )
    assert stopped.returncode == (130 if number == signal.SIGINT else 85), stopped.stderr
    assert "saved checkpoint_" in stopped.stderr
    finished = run_script(deadly_folder, *ARGUMENTS, "--model_dir", "stopped")
    assert finished.returncode == 0, finished.stderr
    undisturbed = run_script(deadly_folder, *ARGUMENTS, "--model_dir", "whole")
    assert undisturbed.returncode == 0
    a, b = (
        load_file(deadly_folder / d / "checkpoint_400" / "model.safetensors") for d in ("whole", "stopped")
    )
    assert all(a[key].equal(b[key]) for key in a)
