"""Accumulated gradients make the update of the large batch; what else a batch does is done once a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_twins import TFTwin, batches, first_weights, train_torch

from portwright.tensorflow.gradients import batches_per_update
from portwright.tensorflow.optimizers import make_train_op

v1 = tf.compat.v1

SECTIONS: list[dict[str, Any]] = [
    {"optimizer_type": "sgd", "learning_rate": 0.1},
    {"optimizer_type": "momentum", "learning_rate": 0.1, "weight_decay_rate": 0.1},
    {"optimizer_type": "adamw", "learning_rate": 0.01, "weight_decay_rate": 0.1, "max_gradient_norm": 0.3},
    {"optimizer_type": "adagrad", "learning_rate": 0.1, "max_gradient_value": 0.05},
    {
        "optimizer_type": "adam",
        "learning_rate": {
            "scheduler": "Linear",
            "initial_learning_rate": 0.1,
            "end_learning_rate": 0.0,
            "total_iters": 4,
        },
    },
]


def merged(data: list[tuple[np.ndarray, np.ndarray]], num: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (
            np.concatenate([ids for ids, _ in data[start : start + num]]),
            np.concatenate([targets for _, targets in data[start : start + num]]),
        )
        for start in range(0, len(data), num)
    ]


@pytest.mark.parametrize("params", SECTIONS, ids=lambda params: str(params["optimizer_type"]))
@pytest.mark.parametrize("num", [2, 3])
def test_equals_the_large_batch(params: dict[str, Any], num: int) -> None:
    data = batches(12)
    small, large = TFTwin({**params, "grad_accum_steps": num}), TFTwin(params)
    small.train(data)
    large.train(merged(data, num))
    for variable, value in small.values().items():
        np.testing.assert_allclose(value, large.values()[variable], rtol=1e-4, atol=1e-5, err_msg=variable)
    assert small.session.run(small.step) == large.session.run(large.step) == 12 // num
    assert (batches_per_update(small.graph), batches_per_update(large.graph)) == (num, 1)


def test_equals_pytorch() -> None:
    params = {
        "optimizer_type": "AdamW",
        "learning_rate": 0.01,
        "weight_decay_rate": 0.1,
        "grad_accum_steps": 4,
    }
    data = batches(12)
    expected, _ = train_torch(params, data)
    twin = TFTwin(params)
    twin.train(data)
    for variable, value in twin.values().items():
        np.testing.assert_allclose(value, expected[variable], rtol=1e-5, atol=1e-6, err_msg=variable)


def test_nothing_moves_before_the_last_batch() -> None:
    twin = TFTwin(
        {"optimizer_type": "adam", "learning_rate": 0.1, "weight_decay_rate": 0.1, "grad_accum_steps": 3}
    )
    twin.train(batches(2))
    for variable, value in twin.values().items():
        np.testing.assert_array_equal(value, first_weights()[variable])
    assert (twin.session.run(twin.step), twin.read("grad_accum_count")) == (0, 2)
    assert np.abs(twin.read("dense/kernel/GradAccum")).max() > 0
    twin.train(batches(1))
    assert (twin.session.run(twin.step), twin.read("grad_accum_count")) == (1, 0)
    assert np.abs(twin.read("dense/kernel/GradAccum")).max() == 0


def test_a_checkpoint_in_the_middle_goes_on_there(tmp_path: Path) -> None:
    params = {"optimizer_type": "adam", "learning_rate": 0.1, "grad_accum_steps": 3}
    data = batches(9)
    whole, first, second = (TFTwin(params) for _ in range(3))
    whole.train(data)
    first.train(data[:5])
    with first.graph.as_default():
        path = v1.train.Saver().save(first.session, str(tmp_path / "model.ckpt"))
    with second.graph.as_default():
        v1.train.Saver().restore(second.session, path)
    second.train(data[5:])
    for name in sorted(whole.names()):
        np.testing.assert_array_equal(whole.read(name), second.read(name), err_msg=name)


def test_batch_norm_moves_once_a_batch() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [4, 2])
        layer = tf.keras.layers.BatchNormalization(momentum=0.5)
        loss = tf.reduce_mean(tf.square(layer(x, training=True) - 1.0))
        op = make_train_op(
            loss,
            {"optimizer_type": "sgd", "learning_rate": 0.1, "grad_accum_steps": 2},
            update_ops=layer.updates,
        )
        session.run(v1.global_variables_initializer())
        expected = np.zeros(2, np.float32)
        for seed in range(3):
            batch = np.random.default_rng(seed).normal(size=(4, 2)).astype(np.float32)
            session.run(op, {x: batch})
            expected = 0.5 * expected + 0.5 * batch.mean(axis=0)
        np.testing.assert_allclose(session.run(layer.moving_mean), expected, rtol=1e-5)


def test_an_overflow_in_one_batch_spoils_the_update_and_is_gone_after() -> None:
    params = {
        "optimizer_type": "sgd",
        "learning_rate": 0.1,
        "grad_accum_steps": 2,
        "loss_scaling_factor": "dynamic",
        "initial_loss_scale": 8.0,
    }
    data = batches(4)
    twin, clean = TFTwin(params), TFTwin(params)
    twin.train(data, [float("inf"), 1.0, 1.0, 1.0])
    clean.train(data[2:])
    for variable, value in twin.values().items():
        np.testing.assert_allclose(value, clean.values()[variable], rtol=1e-6)
    assert twin.read("num_skipped_updates") == 1
    assert twin.session.run(twin.step) == 2
