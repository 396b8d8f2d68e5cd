"""What seed 000 says of model functions for TensorFlow, and what `check` and `port` say of programs that keep to it or do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from portwright.port.api import check, port

FOLDER = Path(__file__).parents[2] / "fixtures" / "seed_000"
RULE_OF_GONE_NAMES = "PW611"
MODEL_FN = """
import portwright.tensorflow as ptf
import tensorflow as tf


def model_fn(features, labels, mode, params):
    hidden = tf.keras.layers.Dense(8, activation="relu")(features)
    logits = tf.keras.layers.Dense(2)(tf.keras.layers.Dropout(0.1)(hidden, training=mode == "train"))
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss, tf.compat.v1.train.get_global_step())
    host_call = {"accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))}
    return ptf.EstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)
"""
KERAS = """
import numpy as np
import tensorflow as tf

x, y = np.zeros((8, 4), "float32"), np.zeros(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])
model.fit(x, y)
"""


def found(text: str, folder: Path) -> list[tuple[str, int]]:
    path = folder / "model.py"
    path.write_text(text)
    return [(f.code, f.line) for f in check([path], ["csx"]).findings]


def line_of(text: str, what: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if what in line)


def test_keras_layers_are_supported(tmp_path: Path) -> None:
    """Seed 000: "It supports the usage of the Tensorflow Keras Layers API"."""
    assert found(MODEL_FN, tmp_path) == []


@pytest.mark.parametrize("place", ["host_call", "return"])
def test_keras_metrics_are_not(tmp_path: Path, place: str) -> None:
    """Seed 000: "but the Tensorflow Metrics API is not supported"."""
    metric = (
        "    metric = tf.keras.metrics.SparseCategoricalAccuracy()\n    metric.update_state(labels, logits)\n"
    )
    text = MODEL_FN.replace(f"    {place}", f"{metric}    {place}", 1)
    assert found(text, tmp_path) == [("PW619", line_of(text, "SparseCategoricalAccuracy"))]
    result = port([tmp_path / "model.py"], ["csx"])
    assert [f.code for f in result.left] == ["PW619"]
    assert not result.changed


@pytest.mark.parametrize(
    "call", ["tf.keras.Sequential([tf.keras.layers.Dense(2)]).fit(features, labels)", "ptf.Estimator(model_fn).train(None)"]
)  # fmt: skip
def test_a_model_function_that_trains_is_told(tmp_path: Path, call: str) -> None:
    """Seed 000: "your code will not call "train" or "fit" as the Estimator does that"."""
    text = MODEL_FN.replace("    host_call", f"    {call}\n    host_call", 1)
    assert found(text, tmp_path) == [("PW626", line_of(text, call))]
    left = port([tmp_path / "model.py"], ["csx"]).left
    assert [(f.code, f.safety) for f in left] == [("PW626", "manual")]
    assert "trains what model_fn builds" in left[0].cure


def test_what_port_makes_of_a_script_that_calls_fit_keeps_to_it(tmp_path: Path) -> None:
    """Both sentences: no metric of Keras keeps its state in what is written, and nothing there trains."""
    script = tmp_path / "train.py"
    script.write_text(KERAS)
    port([script], ["csx"], style="layout", out=tmp_path / "out")
    calls = {
        node.func.attr
        for path in (tmp_path / "out").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert "Dense" in calls
    assert not calls & {"fit", "train", "train_on_batch", "update_state"}
    codes = {f.code for f in check([tmp_path / "out"], ["csx"]).findings}
    assert not codes & {"PW619", "PW626"}


def test_nothing_stands_in_the_way_of_the_seeds_own_folder() -> None:
    codes = {f.code for f in check([FOLDER], ["csx"]).findings}
    assert codes == {RULE_OF_GONE_NAMES}, "tf.estimator, which portwright.tensorflow lends: PW611 names it"
