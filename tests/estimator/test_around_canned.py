"""Checkpoints and saved models of canned estimators go both ways between the real tf.estimator and ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from beside import environment

REAL = os.environ.get("PORTWRIGHT_TF_ESTIMATOR")
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "canned_exchange.py"
CASES = [
    ("v2", "dnn_binary_weighted_bn"),
    ("v2", "linear_classes"),
    ("v2", "head_multi_label"),
    ("v2", "head_multi"),
    ("v1", "dnn_classes"),
    ("v1", "combined_binary"),
]

pytestmark = pytest.mark.skipif(
    REAL is None, reason="PORTWRIGHT_TF_ESTIMATOR names no Python with TensorFlow 2.15"
)


def _run(which: str, jobs: list[list[str]]) -> list[dict[str, Any]]:
    python = sys.executable if which == "ours" or REAL is None else REAL
    done = subprocess.run(
        [python, str(SCRIPT), which, json.dumps(jobs)],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("maker", "taker"), [("ours", "real"), ("real", "ours")])
def test_one_takes_up_what_the_other_made(maker: str, taker: str, tmp_path: Path) -> None:
    jobs = [[kind, name, str(tmp_path / f"{kind}_{name}")] for kind, name in CASES]
    made = _run(maker, [["make", *job] for job in jobs])
    taken = _run(taker, [["take", *job] for job in jobs])
    for (_, name, _), expected, found in zip(jobs, made, taken, strict=True):
        assert found["metrics"].keys() == expected["metrics"].keys()
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5, abs=1e-6), name
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5), name
        for key, values in expected["saved"].items():
            assert found["saved"][key] == pytest.approx(values, rel=1e-5, abs=1e-6), (name, key)
