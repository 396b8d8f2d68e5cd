"""The canned estimators compute what the real ones do: goldens were written by TensorFlow 2.15 (tools/make_estimator_goldens.py)."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.tf.canned_cases import run_case

GOLDEN = json.loads((Path(__file__).parent / "golden_canned.json").read_text())
# Those that together go through every part; tests/estimator runs the others too.
CASES = [
    ("v2", "dnn_binary_weighted_bn"),
    ("v2", "linear_classes"),
    ("v2", "baseline_binary"),
    ("v2", "head_multi_label"),
    ("v2", "head_multi"),
    ("v1", "dnn_binary_weighted_bn"),
    ("v1", "combined_binary"),
]


def _estimators(kind: str) -> Any:
    import portwright.tensorflow as ours

    if kind == "v2":
        return ours
    from portwright.tensorflow.canned import v1

    return types.SimpleNamespace(**vars(v1), RunConfig=ours.RunConfig)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_trains_evaluates_and_predicts_as_the_real_one(kind: str, name: str, tmp_path: Path) -> None:
    check_case(kind, name, tmp_path)


def check_case(kind: str, name: str, tmp_path: Path) -> None:
    expected = GOLDEN[kind][name]
    found = run_case(_estimators(kind), kind == "v1", name, str(tmp_path))
    assert found["variables"] == expected["variables"]
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    assert found["metrics"].keys() == expected["metrics"].keys()
    for key, value in expected["metrics"].items():
        assert found["metrics"][key] == pytest.approx(value, rel=1e-5, abs=1e-6), key
    assert found["predictions"].keys() == expected["predictions"].keys()
    for key, value in expected["predictions"].items():
        if isinstance(value[0], str):
            assert found["predictions"][key] == value
        else:
            np.testing.assert_allclose(found["predictions"][key], value, rtol=1e-4, atol=1e-6, err_msg=key)
    for key, value in expected["sums"].items():
        assert found["sums"][key] == pytest.approx(value, rel=1e-4, abs=1e-4), key
