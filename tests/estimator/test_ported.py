"""A script of TensorFlow 1 under the real tf.estimator, and its port under ours: the same losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from beside import environment

from portwright.port.api import port

REAL = os.environ.get("PORTWRIGHT_TF_ESTIMATOR")
SCRIPT = Path(__file__).parents[1] / "fixtures" / "tensorflow_1" / "old_estimator.py"

pytestmark = pytest.mark.skipif(
    REAL is None, reason="PORTWRIGHT_TF_ESTIMATOR names no Python with TensorFlow 2.15"
)
# What TensorFlow 2.15 itself needs to run code of TensorFlow 1.
_AS_OF_2023 = (
    ("import tensorflow as tf", "import tensorflow.compat.v1 as tf"),
    ("x.shape[-1].value", "int(x.shape[-1])"),
    ("d.make_one_shot_iterator()", "tf.data.make_one_shot_iterator(d)"),
)


def numbers(python: str, script: Path, model_dir: Path) -> list[float]:
    words = [python, "-W", "ignore", str(script), f"--out={model_dir}"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("LOSS", "EVAL"))]
    return [float(word) for words in lines for word in words[1:]]


def test_a_ported_script_has_the_losses_of_the_original(tmp_path: Path) -> None:
    assert REAL is not None
    text = SCRIPT.read_text()
    for old, new in _AS_OF_2023:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "real.py").write_text(text)
    port([SCRIPT], ["csx"], out=tmp_path / "ported")
    real = numbers(REAL, tmp_path / "real.py", tmp_path / "model_real")
    ours = numbers(sys.executable, tmp_path / "ported" / SCRIPT.name, tmp_path / "model_ours")
    assert len(real) == 14
    assert ours == pytest.approx(real, rel=1e-5, abs=2e-6)
