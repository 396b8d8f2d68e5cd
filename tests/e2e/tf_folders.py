"""A TensorFlow model folder to break, run inside the test's own process: TensorFlow takes seconds to import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Folder

PARAMS = ("--params", "configs/params.yaml")
FC_MNIST = Path(__file__).parents[2] / "src" / "portwright" / "tensorflow" / "models" / "fc_mnist"


def copy_folder(to: Path) -> Path:
    shutil.copytree(FC_MNIST, to, ignore=shutil.ignore_patterns("__pycache__", "model_dir"))
    return to


@pytest.fixture
def tf_folder(tmp_path: Path) -> Iterator[Folder]:
    """A copy of the TensorFlow fc_mnist that a test may change."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    yield Folder(copy_folder(tmp_path / "mymodel"))
    import tensorflow as tf

    tf.compat.v1.reset_default_graph()
    tf.keras.backend.clear_session()


def run_process(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Runs a model folder's run.py in a process of its own."""
    return subprocess.run(
        [sys.executable, "run.py", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "400", **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
