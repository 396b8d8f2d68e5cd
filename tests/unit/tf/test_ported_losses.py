"""A script of TensorFlow 1, ported, trains on today's TensorFlow with the losses that the real tf.estimator gave it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.port.api import port

SCRIPT = Path(__file__).parents[2] / "fixtures" / "tensorflow_1" / "old_estimator.py"
# Of the script under tf.estimator of TensorFlow 2.15.1, with `import tensorflow.compat.v1 as tf` and int(x.shape[-1]):
# shuffled batches, a dropout and batch norms without seeds of their own, a decaying rate. Then accuracy and loss of evaluate().
LOSSES = [
    0.857548, 0.776401, 0.541010, 0.501071, 0.476679, 0.368639, 0.405451, 0.408630, 0.292851, 0.288415, 0.158316, 0.163749,
]  # fmt: skip
EVALUATED = [0.421875, 2.516726]


def test_losses_are_those_of_the_real_estimator(tmp_path: Path) -> None:
    result = port([SCRIPT], ["csx"], out=tmp_path / "ported")
    assert {f.code for f in result.fixed} >= {"PW610", "PW611", "PW615", "PW616", "PW625"}
    assert {f.safety for f in result.fixed} == {"safe"}
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "ported" / SCRIPT.name), f"--out={tmp_path / 'model'}"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    losses = [float(words[1]) for words in lines if words and words[0] == "LOSS"]
    evaluated = [float(word) for words in lines if words and words[0] == "EVAL" for word in words[1:]]
    assert losses == pytest.approx(LOSSES, abs=2e-5)
    assert evaluated == pytest.approx(EVALUATED, abs=2e-4)
