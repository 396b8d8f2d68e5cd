"""Scaled losses: updates, skips, growth, bounds and checkpoints, as on the PyTorch side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_twins import TFTwin, batches, train_torch

v1 = tf.compat.v1

INF = float("inf")
ADAMW = {"optimizer_type": "AdamW", "learning_rate": 0.01, "weight_decay_rate": 0.1}
DYNAMIC = {"loss_scaling_factor": "dynamic", "initial_loss_scale": 2.0**10, "steps_per_increase": 3}


@pytest.mark.parametrize(
    "extra",
    [
        {"loss_scaling_factor": 1024.0},
        {"loss_scaling_factor": 3.0},
        DYNAMIC,
        {**DYNAMIC, "max_loss_scale": 2.0**11},
        {**DYNAMIC, "min_loss_scale": 2.0**9},
        {**DYNAMIC, "initial_loss_scale": 1.0, "min_loss_scale": 4.0},
        {**DYNAMIC, "max_gradient_norm": 0.5},
        {**DYNAMIC, "max_gradient_value": 0.05},
        {**DYNAMIC, "grad_accum_steps": 2},
    ],
)
def test_updates_and_skips_equal_pytorch(extra: dict[str, Any]) -> None:
    params = {**ADAMW, **extra}
    data = batches(16)
    factors = [1.0] * 16
    for overflow in (4, 5, 6):
        factors[overflow] = INF
    factors[12] = float("nan")
    expected, scaler = train_torch(params, data, factors)
    twin = TFTwin(params)
    twin.train(data, factors)
    for variable, value in twin.values().items():
        np.testing.assert_allclose(value, expected[variable], rtol=1e-4, atol=1e-5, err_msg=variable)
    assert twin.read("num_skipped_updates") == scaler.num_skipped > 0
    # A step that is skipped counts, as it does there: a run with max_steps ends.
    assert twin.session.run(twin.step) == 16 // extra.get("grad_accum_steps", 1)
    if extra["loss_scaling_factor"] == "dynamic":
        assert twin.read("current_loss_scale") == scaler.current_scale()
        assert twin.read("good_steps") == scaler.state_dict()["finite_steps"]
    else:
        assert "current_loss_scale" not in twin.names()


def test_a_skipped_update_leaves_no_trace_in_the_moments() -> None:
    data = batches(6)
    twin, clean = TFTwin({**ADAMW, **DYNAMIC}), TFTwin({**ADAMW, "loss_scaling_factor": 1.0})
    twin.train(data, [1.0, INF, 1.0, 1.0, INF, 1.0])
    clean.train([data[0], data[2], data[3], data[5]])
    for name in ("dense/kernel", "dense/kernel/Adam", "dense/kernel/Adam_1", "beta1_power", "beta2_power"):
        np.testing.assert_allclose(twin.read(name), clean.read(name), rtol=1e-5, atol=1e-6)


def test_the_factor_never_leaves_float32() -> None:
    params = {
        **ADAMW,
        "loss_scaling_factor": "dynamic",
        "initial_loss_scale": 2.0**127,
        "steps_per_increase": 1,
    }
    twin = TFTwin(params)
    twin.train(batches(3), [0.0] * 3)
    assert twin.read("current_loss_scale") == 2.0**127


def test_the_factor_is_in_the_checkpoint(tmp_path: Path) -> None:
    data = batches(8)
    factors = [1.0, 1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0]
    whole, first, second = (TFTwin({**ADAMW, **DYNAMIC}) for _ in range(3))
    whole.train(data, factors)
    first.train(data[:5], factors[:5])
    with first.graph.as_default():
        path = v1.train.Saver().save(first.session, str(tmp_path / "model.ckpt"))
    with second.graph.as_default():
        v1.train.Saver().restore(second.session, path)
    second.train(data[5:], factors[5:])
    for name in sorted(whole.names()):
        np.testing.assert_array_equal(whole.read(name), second.read(name), err_msg=name)


def test_float16_gradients_survive_when_scaled() -> None:
    def train(factor: float) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            from portwright.tensorflow.optimizers import make_train_op

            weight = v1.get_variable("weight", initializer=tf.constant(1.0))
            tiny = tf.cast(weight, tf.float16) * tf.constant(1e-5, tf.float16) * tf.constant(1e-5, tf.float16)
            loss = tf.cast(tiny, tf.float32)
            op = make_train_op(
                loss, {"optimizer_type": "sgd", "learning_rate": 1e9, "loss_scaling_factor": factor}
            )
            session.run(v1.global_variables_initializer())
            session.run(op)
            return session.run(weight)

    assert train(1.0) == 1.0
    assert train(2.0**15) != 1.0
