"""The Estimator as its users know it: train, resume, evaluate, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.tensorflow import Estimator, EstimatorSpec, ModeKeys, RunConfig

v1 = tf.compat.v1
X = np.arange(32, dtype=np.float32).reshape(16, 2) / 10
Y = X @ np.array([[1.0], [-2.0]], np.float32) + 0.5


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    output = tf.keras.layers.Dense(1, name="dense")(features["x"])
    predictions = {"y": output}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(output - labels))
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, output)}
    train_op = v1.train.GradientDescentOptimizer(params["rate"]).minimize(
        loss, global_step=v1.train.get_global_step()
    )
    return EstimatorSpec(mode, predictions, loss, train_op, metrics)


def train_data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(4)


def eval_data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(5)


def make(folder: Path, **config: Any) -> Estimator:
    return Estimator(model_fn, str(folder), RunConfig(tf_random_seed=3, **config), params={"rate": 0.05})


def test_trains_resumes_evaluates_and_predicts(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    before = estimator.evaluate(eval_data)
    assert estimator.train(train_data, steps=5) is estimator
    estimator.train(train_data, max_steps=30)
    estimator.train(train_data, max_steps=30)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-30")
    after = make(tmp_path).evaluate(eval_data)
    assert after["global_step"] == 30
    assert after["loss"] < before["loss"]
    predictions = list(estimator.predict(eval_data))
    assert len(predictions) == 16
    assert np.isclose(np.mean([abs(p["y"] - y) for p, y in zip(predictions, Y, strict=True)]), after["mae"])
