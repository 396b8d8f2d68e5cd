"""Weight streaming as a user runs it: killed and resumed, moved between modes, stopped by errors; always the same weights."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from portwright.runtime.checkpoint import list_checkpoints, verify_checkpoint

# Ends its own process some time after a given call has begun: in forward, backward, an update or a checkpoint.
DEADLY_MODEL = """
import os, signal, threading, time
import torch
import fc_model

class MNISTModel(fc_model.MNISTModel):
    calls = 0

    def __call__(self, data):
        MNISTModel.calls += 1
        if MNISTModel.calls == int(os.environ.get("KILL_AFTER_CALLS", "0")):
            delay, number = float(os.environ.get("KILL_DELAY", "0")), int(os.environ["KILL_SIGNAL"])
            def kill():
                time.sleep(delay)
                os.kill(os.getpid(), number)
            threading.Thread(target=kill, daemon=True).start()
        loss = super().__call__(data)
        if MNISTModel.calls == int(os.environ.get("SPOIL_AT_CALL", "0")):
            loss.register_hook(lambda grad: grad * float("inf"))
        if MNISTModel.calls == int(os.environ.get("RAISE_AT_CALL", "0")):
            def fail(grad):
                raise ValueError("my own error")
            loss.register_hook(fail)
        return loss
"""
ARGUMENTS = (
    "CPU", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "48",
    "-D", "runconfig.checkpoint_steps=8", "-D", "runconfig.log_steps=7", "-D", "optimizer.max_gradient_norm=0.5",
)  # fmt: skip
STREAMING = ("-D", "runconfig.execution=streaming", "-D", "runconfig.streaming={slots: 2}")
FC_MNIST = Path(__file__).parents[2] / "src" / "portwright" / "models" / "fc_mnist"
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of fc_mnist that the tests of this file share, so that one undisturbed resident run serves them all."""
    copy = tmp_path_factory.mktemp("streaming") / "mymodel"
    shutil.copytree(FC_MNIST, copy, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    (copy / "model.py").rename(copy / "fc_model.py")
    (copy / "model.py").write_text(DEADLY_MODEL)
    return copy


@pytest.fixture
def whole(folder: Path, run_script) -> Path:
    """The resident run's last checkpoint."""
    if not (folder / "whole" / "checkpoint_48").is_dir():
        done = run_script(folder, *ARGUMENTS, "--model_dir", "whole")
        assert done.returncode == 0, done.stderr
    return folder / "whole"


def assert_same_run(a: Path, b: Path) -> None:
    for name in FILES:
        first, second = (load_file(run / "checkpoint_48" / name) for run in (a, b))
        assert first.keys() == second.keys()
        assert all(first[key].equal(second[key]) for key in first), name
    assert _losses(a) == _losses(b)
    assert len(_losses(a)) == 48


def _losses(run: Path) -> list[float]:
    lines = (run / "train" / "metrics.jsonl").read_text().splitlines()
    return [loss for line in lines for loss in json.loads(line)["losses"]]


def test_kills_and_changes_of_mode_change_nothing(folder: Path, whole: Path, run_script) -> None:
    """Resident from the first step to the last, against runs that are killed and go on in the other mode."""
    rng = random.Random(int(os.environ.get("PORTWRIGHT_SEED", "20261116")))
    num_kills = 0
    for attempt in range(4):
        env = {
            "KILL_AFTER_CALLS": str(rng.randint(9, 14)),
            "KILL_DELAY": str(rng.random() * 0.02),
            "KILL_SIGNAL": str(int(signal.SIGKILL)),
        }
        mode = STREAMING if attempt % 2 == 0 else ()
        killed = run_script(folder, *ARGUMENTS, *mode, "--model_dir", "killed", env=env)
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        num_kills += killed.returncode == -signal.SIGKILL
        for checkpoint in list_checkpoints(folder / "killed"):
            assert verify_checkpoint(checkpoint.path) == [], "a torn checkpoint took a final name"
    assert num_kills >= 2
    finished = run_script(folder, *ARGUMENTS, *STREAMING, "--model_dir", "killed")
    assert finished.returncode == 0, finished.stderr
    assert "streaming" in finished.stderr
    assert_same_run(whole, folder / "killed")


def test_a_run_is_stopped_by_a_signal_and_goes_on_resident(folder: Path, whole: Path, run_script) -> None:
    env = {"KILL_AFTER_CALLS": "20", "KILL_SIGNAL": str(int(signal.SIGTERM))}
    stopped = run_script(folder, *ARGUMENTS, *STREAMING, "--model_dir", "moved", env=env)
    assert "The same command resumes" in stopped.stdout + stopped.stderr
    rest = run_script(folder, *ARGUMENTS, "--model_dir", "moved")
    assert rest.returncode == 0, rest.stderr
    assert_same_run(whole, folder / "moved")


@pytest.mark.parametrize(
    ("cause", "message"),
    [("SPOIL_AT_CALL", "gradients of step 11 are not finite"), ("RAISE_AT_CALL", "my own error")],
)
def test_an_error_ends_the_process_and_the_last_checkpoint_is_good(
    folder: Path, whole: Path, run_script, cause: str, message: str
) -> None:
    failed = run_script(folder, *ARGUMENTS, *STREAMING, "--model_dir", cause, env={cause: "11"}, timeout=60)
    assert failed.returncode not in (0, None)
    assert message in failed.stdout + failed.stderr
    assert [checkpoint.step for checkpoint in list_checkpoints(folder / cause)] == [8]
    rest = run_script(folder, *ARGUMENTS, *STREAMING, "--model_dir", cause)
    assert rest.returncode == 0, rest.stderr
    assert_same_run(whole, folder / cause)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("runconfig.streaming={layers: [nowhere.*]}", "'nowhere.*' names no module with weights"),
        ("runconfig.streaming={slots: 1}", "slots"),
        ("runconfig.streaming={slot: 3}", "slot"),
        ("runconfig.compile=true", "compile"),
    ],
)
def test_bad_settings_are_one_line(model_folder: Path, run_script, override: str, message: str) -> None:
    failed = run_script(
        model_folder,
        *ARGUMENTS[:7],
        "-D",
        "runconfig.execution=streaming",
        "-D",
        override,
        "--model_dir",
        "run",
    )
    assert failed.returncode != 0
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
