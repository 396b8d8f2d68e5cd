"""Ours beside the real tf.estimator of TensorFlow 2.15: the same losses from one checkpoint, and each reads what the other wrote.

Run by `make test-estimator`, which makes the real one's environment and names its interpreter in PORTWRIGHT_TF_ESTIMATOR.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from beside import environment

NAMES = ("mlp", "convolutions", "embedding")
REAL = os.environ.get("PORTWRIGHT_TF_ESTIMATOR")

pytestmark = pytest.mark.skipif(
    REAL is None, reason="PORTWRIGHT_TF_ESTIMATOR names no Python with TensorFlow 2.15"
)

Outcomes = dict[tuple[str, str, str], Any]


def ask(which: str, asked: Sequence[tuple[str, str, Path]]) -> list[Any]:
    python = REAL if which == "real" else sys.executable
    assert python is not None
    script = Path(__file__).parent / "scenarios.py"
    words = [python, str(script), which, json.dumps([[n, a, str(f)] for n, a, f in asked])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Both train 20 steps from one checkpoint of the real one; then each looks at what the other left, and goes on from it."""
    root = tmp_path_factory.mktemp("exchange")
    ask("real", [(name, "init", root / "start" / name) for name in NAMES])
    for which in ("real", "ours"):
        for name in NAMES:
            shutil.copytree(root / "start" / name, root / which / name)
    found: Outcomes = {}

    def note(which: str, asked: list[tuple[str, str, Path, str]]) -> None:
        for (name, _, _, key), outcome in zip(asked, ask(which, [a[:3] for a in asked]), strict=True):
            found[name, which, key] = outcome

    looks = [("evaluate", "evaluate"), ("predict", "predict")]
    note("ours", [(name, "train", root / "ours" / name, "train") for name in NAMES])
    note(
        "real",
        [(name, "train", root / "real" / name, "train") for name in NAMES]
        + [(n, a, root / own / n, f"{k} {own}") for n in NAMES for own in ("real", "ours") for a, k in looks],
    )
    note(
        "ours",
        [(n, a, root / own / n, f"{k} {own}") for n in NAMES for own in ("real", "ours") for a, k in looks],
    )
    for name in NAMES:
        shutil.copytree(root / "ours" / name, root / "on" / "real" / name)
        shutil.copytree(root / "real" / name, root / "on" / "ours" / name)
    for which in ("real", "ours"):
        note(which, [(name, "train", root / "on" / which / name, "train on") for name in NAMES])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_twenty_losses_equal_the_real_ones(outcomes: Outcomes, name: str) -> None:
    ours, real = outcomes[name, "ours", "train"], outcomes[name, "real", "train"]
    assert len(ours["losses"]) == 20
    assert ours["losses"] == pytest.approx(real["losses"], rel=1e-6)
    assert ours["variables"] == real["variables"]


@pytest.mark.parametrize("own", ["real", "ours"])
@pytest.mark.parametrize("name", NAMES)
def test_each_evaluates_the_others_checkpoint(outcomes: Outcomes, name: str, own: str) -> None:
    ours, real = outcomes[name, "ours", f"evaluate {own}"], outcomes[name, "real", f"evaluate {own}"]
    assert ours.keys() == real.keys()
    assert ours == pytest.approx(real, rel=1e-5)
    assert real["global_step"] == 21


@pytest.mark.parametrize("own", ["real", "ours"])
@pytest.mark.parametrize("name", NAMES)
def test_each_predicts_from_the_others_checkpoint(outcomes: Outcomes, name: str, own: str) -> None:
    ours = outcomes[name, "ours", f"predict {own}"]["probabilities"]
    real = outcomes[name, "real", f"predict {own}"]["probabilities"]
    assert len(ours) == len(real) > 100
    for mine, theirs in zip(ours, real, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_each_goes_on_from_the_others_checkpoint(outcomes: Outcomes, name: str) -> None:
    """Both checkpoints are of step 21 and equal, so both continuations are."""
    ours, real = outcomes[name, "ours", "train on"], outcomes[name, "real", "train on"]
    assert ours["losses"] == pytest.approx(real["losses"], rel=1e-5)
    assert len(real["losses"]) == 20
