"""Estimators from Keras models: the numbers are those of the real model_to_estimator (TensorFlow 2.15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UserError

v1 = tf.compat.v1

REAL_LOSSES = [
    1.0692778825759888,
    1.0918097496032715,
    1.0771552324295044,
    1.05625581741333,
    1.037740707397461,
    1.0760579109191895,
]
REAL_METRICS = {"accuracy": 0.40625, "loss": 1.0825644731521606, "global_step": 6}
REAL_PREDICTION = [0.24350345134735107, 0.37036335468292236, 0.38613319396972656]


def build(optimizer: Any = None) -> Any:
    inputs = tf.keras.Input((4,), name="x")
    net = tf.keras.layers.Dense(5, activation="relu", name="h")(inputs)
    net = tf.keras.layers.BatchNormalization(name="bn")(net)
    outputs = tf.keras.layers.Dense(3, activation="softmax", name="o")(net)
    model = tf.keras.Model(inputs, outputs)
    draw = np.random.RandomState(0)
    model.set_weights([(np.abs(draw.randn(*w.shape)) * 0.3).astype(np.float32) for w in model.get_weights()])
    chosen = optimizer or tf.keras.optimizers.legacy.Adam(0.01)
    model.compile(chosen, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def input_fn() -> Any:
    draw = np.random.RandomState(1)
    x, y = draw.randn(32, 4).astype(np.float32), draw.randint(0, 3, (32, 1))
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(8).repeat(3)


class Losses(v1.train.SessionRunHook):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def begin(self) -> None:
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(float(run_values.results))


@pytest.mark.parametrize("checkpoint_format", ["saver", "checkpoint"])
def test_trains_evaluates_and_predicts_as_the_real_one(checkpoint_format: str, tmp_path: Path) -> None:
    model = build() if checkpoint_format == "saver" else build(tf.keras.optimizers.Adam(0.01))
    config = pt.RunConfig(tf_random_seed=1, log_step_count_steps=None)
    estimator = pt.model_to_estimator(
        model, model_dir=str(tmp_path), config=config, checkpoint_format=checkpoint_format
    )
    losses = Losses()
    estimator.train(input_fn, hooks=[losses], steps=6)
    np.testing.assert_allclose(losses.seen, REAL_LOSSES, rtol=1e-5)
    assert estimator.evaluate(input_fn) == pytest.approx(REAL_METRICS, rel=1e-5)
    np.testing.assert_allclose(next(iter(estimator.predict(input_fn)))["o"], REAL_PREDICTION, rtol=1e-5)
    names = estimator.get_variable_names()
    expected = (
        "h/kernel"
        if checkpoint_format == "saver"
        else "layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    )
    assert expected in names


def test_saved_models_metric_names_and_files(tmp_path: Path) -> None:
    build().save(tmp_path / "model.keras")
    estimator = pt.model_to_estimator(
        keras_model_path=str(tmp_path / "model.keras"),
        model_dir=str(tmp_path / "run"),
        config=pt.RunConfig(log_step_count_steps=None),
        metric_names_map={"accuracy": "right"},
    )
    assert estimator.evaluate(input_fn)["right"] == 0.375  # the weights of the file
    estimator.train(input_fn, steps=1)
    receiver = pt.export.build_raw_serving_input_receiver_fn({"x": tf.ones([1, 4])})
    path = estimator.export_saved_model(str(tmp_path / "out"), receiver).decode()
    found = tf.saved_model.load(path).signatures["serving_default"](x=tf.ones([2, 4]))["o"]
    expected = list(estimator.predict(lambda: tf.data.Dataset.from_tensors({"x": tf.ones([2, 4])})))
    np.testing.assert_allclose(found, [row["o"] for row in expected], rtol=1e-5)


class Subclass(tf.keras.Model):
    """A model whose layers are not known before it is called."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pt.model_to_estimator(), "Neither"),
        (lambda: pt.model_to_estimator(build(), "x"), "Both"),
        (lambda: pt.model_to_estimator(3), "keras_model is a int"),
        (lambda: pt.model_to_estimator(build(), checkpoint_format="h5"), "checkpoint_format is 'h5'"),
        (lambda: pt.model_to_estimator(Subclass()), "subclass"),
        (
            lambda: pt.model_to_estimator(tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])),
            "not compiled",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_features_and_names_that_the_model_does_not_have(tmp_path: Path) -> None:
    estimator = pt.model_to_estimator(build(), model_dir=str(tmp_path), metric_names_map={"wrong": "right"})
    with pytest.raises(UserError, match="metric_names_map names wrong"):
        estimator.evaluate(input_fn)
    with pytest.raises(UserError, match="features lack x"):
        list(estimator.predict(lambda: tf.data.Dataset.from_tensors({"z": tf.ones([2, 4])})))
