"""CosmicTagger's whole training step, upsampling and all, before the real Cerebras front end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import find_models, get_target
from portwright.job.vendor_env import find_known

ENVIRONMENT = get_target("CSX").environment
assert ENVIRONMENT is not None
pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        ENVIRONMENT.is_here(), reason="this is the SDK's own environment: run.py goes there from a user's"
    ),
    pytest.mark.skipif(
        find_known(ENVIRONMENT) is None,
        reason="no environment with the Cerebras SDK is known: portwright env csx",
    ),
]
SMALL = (
    "train_input.downsample=6",
    "eval_input.downsample=6",
    "model.depth=2",
    "model.n_initial_filters=4",
    "model.bottleneck_deepest=8",
    "model.blocks_deepest_layer=1",
)
CASES = {
    "2D, bilinear, concatenated, focal": (),
    "3D, nearest": ("model.conv_mode=conv_3D",),
    "strided, transposed, summed, light": (
        "model.downsampling=convolutional",
        "model.upsampling=convolutional",
        "model.connections=sum",
        "model.loss_balance_scheme=light",
    ),
    "no norms, plain blocks, even": (
        "model.normalization=none",
        "model.residual=false",
        "model.loss_balance_scheme=even",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_training_step_is_accepted(case: str, tmp_path: Path, run_script: Any) -> None:
    folder = tmp_path / "cosmictagger"
    shutil.copytree(
        find_models()["cosmictagger"], folder, ignore=shutil.ignore_patterns("__pycache__", "model_dir")
    )
    overrides = [word for text in (*SMALL, *CASES[case]) for word in ("-D", text)]
    command = ("CSX", "--mode", "train", "--params", "configs/params.yaml", "--validate_only")
    done = run_script(folder, *command, *overrides)
    assert done.returncode == 0, done.stderr
    assert "accepted by the front end, not placed on a wafer" in done.stdout
    (cirh,) = (folder / "model_dir" / "artifacts").rglob("000001/cirh.mlir")
    assert cirh.stat().st_size > 10_000
