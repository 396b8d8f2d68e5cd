"""Neither framework is imported for a run of the other, and neither for what needs none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import FC_MNIST
from tf_folders import FC_MNIST as TF_FC_MNIST
from tf_folders import PARAMS

RUN = """
import runpy, sys
sys.path.insert(0, {folder!r})
sys.argv = ["run.py", "CPU", "--mode", "train_and_eval", *{params!r}, "--max_steps", "2", "--model_dir", "out"]
runpy.run_path({folder!r} + "/run.py", run_name="__main__")
assert {framework!r} in sys.modules
assert {other!r} not in sys.modules, "{other} was imported"
"""
LIGHT = """
import sys
from portwright.cli import app
for command in (["check", "model.py", "--no-cache"], ["models"], ["new", "made", "--framework", "tensorflow"]):
    try:
        app(command, standalone_mode=False)
    except SystemExit:
        pass
assert not {"torch", "tensorflow", "tf_keras"} & set(sys.modules)
"""


def run_code(code: str, folder: Path, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.parametrize(
    ("framework", "other", "folder"),
    [("tensorflow", "torch", TF_FC_MNIST), ("torch", "tensorflow", FC_MNIST)],
)
def test_a_run_imports_one_framework(framework: str, other: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    params = [PARAMS[0], str(folder / "configs" / "params.yaml")]
    code = RUN.format(folder=str(folder), framework=framework, other=other, params=params)
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_light_commands_import_neither(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import tensorflow as tf\n\nx = tf.placeholder(tf.float32)\n")
    done = run_code(LIGHT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "run.py").is_file()


def test_a_missing_tensorflow_is_told_in_one_line(tmp_path: Path) -> None:
    """The packages are hidden, as if they had never been installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery\n"
        "find = importlib.machinery.PathFinder.find_spec\n"
        "def find_others(name, path=None, target=None):\n"
        "    return None if name in ('tensorflow', 'tf_keras') else find(name, path, target)\n"
        "importlib.machinery.PathFinder.find_spec = find_others\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    arguments = ("CPU", "--mode", "train", *PARAMS)
    for words in (["run.py", *arguments], ["-m", "portwright.cli", "run", ".", *arguments]):
        done = subprocess.run(
            [sys.executable, *words], cwd=TF_FC_MNIST, env=env, capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "pip install 'portwright[tensorflow]'" in done.stderr
