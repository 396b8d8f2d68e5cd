"""Every public name of tf.estimator (TensorFlow 2.15) is here with the same arguments, or left out for a reason."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from unit.tf.signatures import describe

REAL = json.loads((Path(__file__).parent / "estimator_signatures.json").read_text())

LEFT_OUT = {
    "tf.estimator.experimental.LinearSDCA": "an optimizer of its own for convex models, on ops without a gradient",
    "tf.compat.v1.estimator.experimental.LinearSDCA": "as tf.estimator.experimental.LinearSDCA",
    "tf.estimator.experimental.RNNClassifier": "experimental in 2.15 and built on a Keras layer that nothing else uses",
    "tf.estimator.experimental.RNNEstimator": "as RNNClassifier",
    "tf.compat.v1.estimator.experimental.KMeans": "clustering: no gradient, and no target of ours has its ops",
    "tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec": "places embedding tables on a TPU",
}
ADDED = {"EstimatorSpec": ["host_call=None"]}  # last; Cerebras's model functions pass it
MODULES = ("experimental", "export", "inputs", "tpu")


def ours(name: str) -> Any:
    is_v1 = name.startswith("tf.compat.v1.")
    *inner, last = name.split("estimator.", 1)[1].split(".")
    if inner and inner[0] in MODULES:
        return getattr(importlib.import_module(f"portwright.tensorflow.{inner[0]}"), last)
    if is_v1:
        v1 = importlib.import_module("portwright.tensorflow.canned.v1")
        if last in vars(v1) and last not in ("Estimator", "Head"):
            return getattr(v1, last)
    return getattr(importlib.import_module("portwright.tensorflow"), last)


@pytest.mark.parametrize("name", sorted(set(REAL) - set(LEFT_OUT)))
def test_takes_the_same_arguments(name: str) -> None:
    real, found = REAL[name], describe(ours(name))
    if real["arguments"] is not None:
        assert found["arguments"] == real["arguments"] + ADDED.get(name.rpartition(".")[2], [])
    for method, arguments in real.get("methods", {}).items():
        assert method in found["methods"], f"{name}.{method} is missing"
        if arguments is not None:
            assert found["methods"][method] == arguments, f"{name}.{method}"


def test_what_is_left_out_is_not_here() -> None:
    assert set(REAL) >= set(LEFT_OUT)
    for name in LEFT_OUT:
        with pytest.raises(AttributeError):
            ours(name)
