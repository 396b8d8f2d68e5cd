"""The TensorFlow folders of the public model zoo 1.6: each trains, goes on where it was stopped, evaluates and is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus.tf_launch import assert_equal_weights, find, roll_back, run, steps_saved
from corpus.tf_zoo_cases import CASES, TfZooCase

# In these folders the input draws from the system, or in Python, and no two runs are alike (see docs/compat.md).
UNLIKE = ("fc_mnist", "roberta", "linformer", "classifier")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_folder(case: TfZooCase, tmp_path: Path) -> None:
    zoo = find("modelzoo-1.6") / "modelzoo"
    params = case.params(zoo, tmp_path)
    script = zoo / case.folder / "run.py"

    def go(mode: str, out: str, *more: str) -> str:
        return run(
            script, "--params", params, "--mode", mode, "--model_dir", tmp_path / out, *more, cwd=tmp_path
        )

    go("train", "whole")
    assert steps_saved(tmp_path / "whole")[-1] == 4
    roll_back(tmp_path / "whole", tmp_path / "parts", 2)
    go("train", "parts")
    assert steps_saved(tmp_path / "parts")[-1] == 4
    if case.name not in UNLIKE:
        assert_equal_weights(tmp_path / "whole" / "model.ckpt-4", tmp_path / "parts" / "model.ckpt-4")
    for mode in case.modes:
        more = ["--max_steps", "6"] if mode == "train_and_eval" else []
        go(mode, "whole", *more)
        if mode == "train_and_eval":
            assert steps_saved(tmp_path / "whole")[-1] == 6
        if mode == "predict":
            assert list((tmp_path / "whole" / "predict").glob("*.npz"))
    if "eval" in case.modes:
        assert list((tmp_path / "whole" / "eval").glob("events*"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("word", ["validate_only", "compile_only"])
def test_folder_is_planned_for_the_wafer(word: str, tmp_path: Path) -> None:
    zoo = find("modelzoo-1.6") / "modelzoo"
    case = next(case for case in CASES if case.name == "bert")
    params = case.params(zoo, tmp_path)
    out = tmp_path / "out"
    told = run(
        zoo / case.folder / "run.py",
        "--params",
        params,
        "--mode",
        "train",
        "--model_dir",
        out,
        f"--{word}",
        cwd=tmp_path,
    )
    assert "FLOPs/sample" in told
    assert "no TensorFlow compiler" in told
    plans = [json.loads(path.read_text()) for path in tmp_path.rglob("plan.json")]
    assert bool(plans) == (word == "compile_only")
    assert all(plans)
    assert not steps_saved(out)
