"""The real Cerebras SDK, on its CPU backend, behind the same Session: runs in the SDK's own environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance import contract

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]


def open_csx(job: contract.JobSpec) -> contract.Session:
    from portwright.targets.csx.backend import CsxBackend

    return CsxBackend({"on_cpu": True}, print).open(job)


def open_torch(job: contract.JobSpec) -> contract.Session:
    from portwright.runtime.backend import TorchBackend

    return TorchBackend("cpu", {}, print).open(job)


@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
def test_contract(check: Callable[..., object]) -> None:
    check(open_csx)


def test_the_sdk_computes_what_torch_does() -> None:
    """Weights taken from our session into the vendor's (they draw initial weights in another order), the vendor's SGD,
    loader and loop: the losses agree to float32 rounding. (Its AdamW adds eps before correcting the bias; torch's, after.)"""
    job = contract.make_job(
        "train", "optimizer.optimizer_type=SGD", "optimizer.learning_rate=0.1", "optimizer.momentum=0.9"
    )
    ours, theirs = open_torch(job), open_csx(job)
    theirs.load_state(list(ours.state()), None)
    expected = [loss for event in ours.train(contract.stretch(0, 48)) for loss in event.losses]
    losses = [loss for event in theirs.train(contract.stretch(0, 48)) for loss in event.losses]
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_run_py_on_the_sdk(model_folder: Path, run_script) -> None:
    done = run_script(
        model_folder, "CSX", "--on_cpu", "--mode", "train_and_eval", "--params", "configs/params.yaml", "--max_steps", "120",
        "-D", "runconfig.checkpoint_steps=60",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "accuracy: 0." in done.stdout
    again = run_script(
        model_folder, "CSX", "--on_cpu", "--mode", "train", "--params", "configs/params.yaml", "--max_steps", "130",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr


def test_without_on_cpu_it_says_so(model_folder: Path, run_script) -> None:
    done = run_script(model_folder, "CSX", "--mode", "train", "--params", "configs/params.yaml")
    assert done.returncode == 1
    assert "--on_cpu" in done.stderr
