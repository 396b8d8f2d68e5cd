"""Running public TensorFlow code under --compat estimator in a process of its own, and reading what it left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STANDINS = Path(__file__).parent / "standins_tf"


def find(name: str) -> Path:
    """A project of the corpus; without one the test is skipped, and counted."""
    corpus = os.environ.get("PORTWRIGHT_CORPUS")
    if not corpus:
        pytest.skip("PORTWRIGHT_CORPUS is not set")
    path = Path(corpus) / name
    if not path.is_dir():
        pytest.skip(f"{name} is not in PORTWRIGHT_CORPUS")
    return path


def run(script: Path, *arguments: str | Path, cwd: Path | None = None, timeout: float = 540) -> str:
    """The script's whole output; it must end well."""
    paths = [str(STANDINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "portwright.cli",
            "run",
            "--compat",
            "estimator",
            str(script),
            *map(str, arguments),
        ],
        cwd=cwd or script.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "NO_COLOR": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{script} {arguments}\n{done.stdout[-1500:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def steps_saved(model_dir: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in model_dir.glob("model.ckpt-*.index"))


def roll_back(model_dir: Path, to: Path, step: int) -> None:
    """A copy as a training that was killed after `step` would have left it.

    A training that reached its last step would start its data anew, as tf.estimator does.
    """
    shutil.copytree(model_dir, to)
    for later in (number for number in steps_saved(model_dir) if number > step):
        for path in to.glob(f"model.ckpt-{later}.*"):
            path.unlink()
        shutil.rmtree(to / "resume" / f"step-{later}")
    kept = [f'all_model_checkpoint_paths: "model.ckpt-{number}"' for number in steps_saved(to)]
    (to / "checkpoint").write_text("\n".join([f'model_checkpoint_path: "model.ckpt-{step}"', *kept]) + "\n")


def weights(checkpoint: Path) -> dict[str, Any]:
    from portwright.tensorflow import prepare

    prepare()
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    different = [name for name in first if not (first[name] == second[name]).all()]
    assert not different
