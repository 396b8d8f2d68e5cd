"""run.py CSX in a user's ordinary environment: with the vendor's environment known, and without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import find_models, get_target
from portwright.job.vendor_env import find_known

ENVIRONMENT = get_target("CSX").environment
assert ENVIRONMENT is not None
pytestmark = pytest.mark.skipif(
    ENVIRONMENT.is_here(), reason="this is the SDK's own environment: a user's is another"
)
needs_sdk = pytest.mark.skipif(
    find_known(ENVIRONMENT) is None,
    reason="no environment with the Cerebras SDK is known: portwright env csx",
)
VALIDATE = ("CSX", "--mode", "train", "--params", "configs/params.yaml", "--validate_only")


@pytest.fixture
def no_environment(tmp_path: Path) -> dict[str, str]:
    return {"PORTWRIGHT_ENVS": str(tmp_path / "none")}


def test_without_the_sdk_one_line_says_how_to_get_it(
    model_folder: Path, run_script: Any, no_environment: dict[str, str]
) -> None:
    done = run_script(model_folder, *VALIDATE, env=no_environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "portwright env csx" in done.stderr
    done = run_script(model_folder, *VALIDATE, "--json", env=no_environment)
    assert "portwright env csx" in json.loads(done.stdout)["cure"]


def test_without_the_sdk_other_targets_go_on(
    model_folder: Path, run_script: Any, no_environment: dict[str, str]
) -> None:
    done = run_script(model_folder, "CPU", *VALIDATE[1:], env=no_environment)
    assert done.returncode == 0, done.stderr


@needs_sdk
@pytest.mark.vendor
@pytest.mark.parametrize("name", ["fc_mnist", "alphabet"])
def test_reference_models_are_accepted(name: str, tmp_path: Path, run_script: Any) -> None:
    folder = tmp_path / name
    shutil.copytree(find_models()[name], folder, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    done = run_script(folder, *VALIDATE)
    assert done.returncode == 0, done.stderr
    assert "accepted by the front end, not placed on a wafer" in done.stdout
    assert "going on in" in done.stderr
    (cirh,) = (folder / "model_dir" / "artifacts").rglob("000001/cirh.mlir")
    assert cirh.stat().st_size > 10_000
    assert str(cirh) in done.stdout


@needs_sdk
@pytest.mark.vendor
def test_portwright_run_goes_there_too(model_folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "portwright.cli",
        "run",
        str(model_folder),
        "CSX",
        "--on-cpu",
        "--mode",
        "train",
    ]
    done = subprocess.run(
        [*command, "--max_steps", "3", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["target"], document["step"]) == ("CSX", 3)


@needs_sdk
@pytest.mark.vendor
def test_a_schedulers_signal_reaches_the_run(model_folder: Path) -> None:
    """It is saved, and status 85 asks to be requeued, as on every other target."""
    process = subprocess.Popen(
        [sys.executable, "run.py", "CSX", "--on_cpu", "--mode", "train", "--params", "configs/params.yaml",
         "--max_steps", "1000000", "-D", "runconfig.log_steps=5"],
        cwd=model_folder, env={**os.environ, "NO_COLOR": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = model_folder / "model_dir" / "train" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while (
        (not log.is_file() or not log.read_text()) and time.monotonic() < deadline and process.poll() is None
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 85, stderr
    assert list((model_folder / "model_dir").glob("checkpoint_*"))
