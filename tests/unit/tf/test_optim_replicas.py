"""Replicas of a tf.distribute strategy make the update that one device makes of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_twins import CLASSES, batches, first_weights

from portwright.errors import UnsupportedError
from portwright.tensorflow.optimizers import make_train_op

v1 = tf.compat.v1


def train(params: dict[str, Any], num_replicas: int) -> dict[str, Any]:
    data = batches(4, batch_size=6)

    def model(part: int) -> Any:
        size = 6 // num_replicas
        rows = slice(part * size, part * size + size)
        held = {
            name: v1.get_variable(name, initializer=tf.constant(value))
            for name, value in first_weights().items()
        }
        step = v1.train.get_or_create_global_step()
        ids = tf.gather(tf.constant(np.stack([ids[rows] for ids, _ in data])), step)
        targets = tf.gather(tf.constant(np.stack([targets[rows] for _, targets in data])), step)
        output = tf.matmul(tf.gather(held["embedding/table"], ids), held["dense/kernel"]) + held["dense/bias"]
        loss = tf.reduce_mean(tf.square(output - tf.reshape(targets, [size, CLASSES])))
        with tf.control_dependencies([make_train_op(loss, params)]):
            return tf.identity(loss)

    with tf.Graph().as_default():
        if num_replicas == 1:
            op: Any = model(0)
        else:
            strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(num_replicas)])
            strategy._scale_loss_for_estimator = (
                True  # as the Estimator asks of it: replicas give shares of a mean
            )

            @tf.autograph.experimental.do_not_convert
            def of_replica() -> Any:
                context = tf.distribute.get_replica_context()
                return model(int(tf.get_static_value(context.replica_id_in_sync_group)))

            with strategy.scope():
                v1.train.get_or_create_global_step()
                results = strategy.extended.call_for_each_replica(of_replica, args=(), kwargs={})
            op = tf.group(*strategy.experimental_local_results(results))
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": num_replicas})) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(4):
                session.run(op)
            variables = {variable.op.name: variable for variable in v1.global_variables()}
            return dict(session.run(variables))


@pytest.mark.parametrize(
    "params",
    [
        {"optimizer_type": "sgd", "max_gradient_norm": 0.2},
        {"optimizer_type": "momentum", "max_gradient_value": 0.02},
        {"optimizer_type": "adamw", "weight_decay_rate": 0.5, "learning_rate": 0.01},
        {"optimizer_type": "lamb", "weight_decay_rate": 0.5, "learning_rate": 0.01},
    ],
)
def test_replicas_equal_one_device(params: dict[str, Any]) -> None:
    params = {"learning_rate": 0.1, **params}
    one, two = train(params, 1), train(params, 2)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
        copy = two.get(f"{name}/replica_1", value)
        np.testing.assert_allclose(copy, value, rtol=2e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("extra", [{"loss_scaling_factor": 8.0}, {"grad_accum_steps": 2}])
def test_what_needs_a_decision_of_all_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=f"{next(iter(extra))} does not work on 2 replicas"):
        train({"optimizer_type": "sgd", "learning_rate": 0.1, **extra}, 2)
