"""What make_train_op trains, names and refuses; checkpoints exchange with tf.compat.v1.train's optimizers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_twins import TFTwin, batches, first_weights

from portwright.errors import UserError
from portwright.tensorflow import layers
from portwright.tensorflow.gradients import is_decayed
from portwright.tensorflow.optimizers import make_optimizer, make_train_op

v1 = tf.compat.v1

SGD = {"optimizer_type": "sgd", "learning_rate": 0.1}
ADAM = {"optimizer_type": "adam", "learning_rate": 0.1}


@pytest.mark.parametrize("params", [SGD, {**ADAM, "weight_decay_rate": 0.1}, {**ADAM, "grad_accum_steps": 2}])
def test_only_some_variables_are_trained(params: dict[str, Any]) -> None:
    twin = TFTwin(params, var_list=["^dense/"])
    twin.train(batches(4))
    first, last = first_weights(), twin.values()
    np.testing.assert_array_equal(last["embedding/table"], first["embedding/table"])
    assert not np.allclose(last["dense/kernel"], first["dense/kernel"])
    assert not any(name.startswith("embedding/table/") for name in twin.names())


def test_variables_can_be_given_themselves_also_of_mixed_precision() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        layer = layers.Dense(2, name="dense", dtype="mixed_bfloat16")
        loss = tf.reduce_mean(tf.cast(layer(tf.ones([3, 4])), tf.float32))
        op = make_train_op(loss, SGD, var_list=layer.trainable_weights[:1])
        session.run(v1.global_variables_initializer())
        before = session.run([layer.kernel, layer.bias])
        session.run(op)
        after = session.run([layer.kernel, layer.bias])
        assert not np.allclose(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize(
    ("var_list", "message"),
    [(["dnse"], "'dnse'"), ([], "no variable"), ("dense", "text 'dense'")],
)
def test_a_wrong_choice_is_refused(var_list: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TFTwin(SGD, var_list=var_list)


def test_losses_that_cannot_be_trained_are_refused() -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=tf.ones([3]))
        with pytest.raises(UserError, match="one floating-point number"):
            make_train_op(weight * 2.0, SGD)
        with pytest.raises(UserError, match="one floating-point number"):
            make_train_op(3.0, SGD)
        with pytest.raises(UserError, match="depends on no trainable variable"):
            make_train_op(tf.reduce_sum(tf.stop_gradient(weight)), SGD)
        make_train_op(tf.reduce_sum(weight, keepdims=True), SGD)
    with pytest.raises(UserError, match="outside of a graph"):
        make_train_op(tf.constant(1.0), SGD)
    with tf.Graph().as_default(), pytest.raises(UserError, match="no variable to train"):
        make_train_op(tf.constant(1.0), SGD)


def test_updates_of_the_collection_run() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=1.0)
        seen = v1.get_variable("seen", initializer=0.0, trainable=False)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_add(seen, 1.0))
        op = make_train_op(tf.square(weight), SGD)
        assert isinstance(op, tf.Operation)
        session.run(v1.global_variables_initializer())
        session.run(op)
        session.run(op)
        assert session.run(seen) == 2.0


def test_summaries() -> None:
    twin = TFTwin({**ADAM, "log_summaries": True, "loss_scaling_factor": 8.0, "max_gradient_norm": 1.0})
    ids, targets = batches(1)[0]
    with twin.graph.as_default():
        merged = v1.summary.merge_all()
    found = v1.Summary.FromString(twin.session.run(merged, {twin.ids: ids, twin.targets: targets}))
    values = {value.tag: value.simple_value for value in found.value}
    assert values["train/lr"] == pytest.approx(0.1)
    assert values["train/loss_scale"] == 8.0
    assert values["train/unclipped_grad_norm"] > 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ADAM, lambda: v1.train.AdamOptimizer(0.1, epsilon=1e-6)),
        ({**ADAM, "optimizer_type": "adamw"}, lambda: v1.train.AdamOptimizer(0.1, epsilon=1e-6)),
        ({**SGD, "optimizer_type": "momentum"}, lambda: v1.train.MomentumOptimizer(0.1, 0.9)),
        (
            {**SGD, "optimizer_type": "nesterov"},
            lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        ),
        (
            {**SGD, "optimizer_type": "adagrad", "initial_accumulator_value": 0.1},
            lambda: v1.train.AdagradOptimizer(0.1),
        ),
        (SGD, lambda: v1.train.GradientDescentOptimizer(0.1)),
    ],
    ids=["adam", "adamw", "momentum", "nesterov", "adagrad", "sgd"],
)
def test_checkpoints_exchange_with_the_optimizers_of_tensorflow(
    ours: Any, theirs: Any, tmp_path: Path
) -> None:
    data = batches(6)
    twin = TFTwin(ours)
    twin.train(data[:3])
    with twin.graph.as_default():
        path = v1.train.Saver().save(twin.session, str(tmp_path / "ours"))
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        ids, targets = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.float32, [None, 3])
        held = {
            name: v1.get_variable(name, initializer=tf.zeros_like(value))
            for name, value in first_weights().items()
        }
        # By a product and not by a gather: theirs leave the momentum of rows alone that a batch does not have.
        rows = tf.matmul(tf.one_hot(ids, 7), held["embedding/table"])
        output = tf.matmul(rows, held["dense/kernel"]) + held["dense/bias"]
        op = theirs().minimize(tf.reduce_mean(tf.square(output - targets)), global_step=step)
        names = {variable.op.name for variable in v1.global_variables()}
        assert names == {name for name, _ in tf.train.list_variables(path)}
        v1.train.Saver().restore(session, path)
        for batch_ids, batch_targets in data[3:]:
            session.run(op, {ids: batch_ids, targets: batch_targets})
        theirs_after = session.run(held)
        back = v1.train.Saver().save(session, str(tmp_path / "theirs"))
        state = session.run({variable.op.name: variable for variable in v1.global_variables()})
    twin.train(data[3:])
    for name, value in twin.values().items():
        np.testing.assert_allclose(value, theirs_after[name], rtol=1e-3, atol=2e-4, err_msg=name)
    with twin.graph.as_default():
        v1.train.Saver().restore(twin.session, back)
    for name, value in state.items():
        np.testing.assert_array_equal(twin.read(name), value)


def test_an_optimizer_of_its_own() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("dense/kernel", initializer=tf.ones([2, 2]))
        optimizer = make_optimizer({**ADAM, "optimizer_type": "adamw", "weight_decay_rate": 1.0})
        op = optimizer.minimize(tf.reduce_sum(weight) * 0.0)
        session.run(v1.global_variables_initializer())
        session.run(op)
        np.testing.assert_allclose(session.run(weight), 0.9, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "rank", "decayed"),
    [
        ("dense/kernel", 2, True),
        ("dense/bias", 1, False),
        ("attention/query/bias", 2, False),
        ("bert/LayerNorm/gamma", 1, False),
        ("batch_normalization_3/beta", 1, False),
        ("layer_norm/weight", 1, False),
        ("ln_f/g", 1, False),
        ("norm1/scale", 1, False),
        ("embeddings/word_embeddings", 2, True),
        ("weight_norm/v", 1, True),
        ("normal_head/scale", 1, True),
        ("relative_attention_bias", 2, False),
        ("alpha", 0, True),
    ],
)
def test_biases_and_norms_are_not_decayed(name: str, rank: int, decayed: bool) -> None:
    assert is_decayed(name, rank, None) is decayed
    assert is_decayed(name, rank, []) is True
    assert is_decayed(name, rank, [name[:4]]) is False


def test_a_pattern_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TFTwin({**ADAM, "weight_decay_rate": 0.1, "exclude_from_weight_decay": ["LayerNrm", "dense"]})
    assert "LayerNrm" in caplog.text
    assert "'dense'" not in caplog.text


def test_names_of_all_that_a_checkpoint_holds() -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=1.0)
        make_train_op(tf.square(weight), {**ADAM, "loss_scaling_factor": "dynamic", "grad_accum_steps": 2})
        names = {variable.op.name for variable in v1.global_variables()}
    assert names == {
        "weight",
        "weight/Adam",
        "weight/Adam_1",
        "weight/GradAccum",
        "beta1_power",
        "beta2_power",
        "current_loss_scale",
        "good_steps",
        "num_skipped_updates",
        "grad_accum_count",
        "global_step",
    }


@pytest.mark.parametrize("extra", [{}, {"loss_scaling_factor": "dynamic", "grad_accum_steps": 2}])
@pytest.mark.parametrize("rule", ["adam", "adagrad", "lamb", "momentum"])
def test_built_after_other_updates_as_old_code_does(extra: dict[str, Any], rule: str) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=tf.ones([2]))
        seen = v1.get_variable("seen", initializer=0.0, trainable=False)
        with tf.control_dependencies([v1.assign_add(seen, 1.0)]):
            op = make_train_op(
                tf.reduce_sum(tf.square(weight)),
                {"optimizer_type": rule, "learning_rate": 0.1, **extra},
            )
        session.run(v1.global_variables_initializer())  # which must not need the update to run
        session.run([op])
        session.run([op])
        assert session.run(seen) == 2.0
        assert (session.run(weight) < 1.0).all()


def test_two_train_ops_in_one_graph() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        one, two = (v1.get_variable(name, initializer=1.0) for name in ("generator/w", "critic/w"))
        loss = tf.square(one) + tf.square(two)
        first = make_train_op(loss, ADAM, var_list=["^generator/"])
        second = make_train_op(loss, {**ADAM, "grad_accum_steps": 2}, var_list=[two], advance=False)
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run([first, second])
        assert session.run(v1.train.get_global_step()) == 2
        np.testing.assert_allclose(session.run([one, two]), [0.8, 0.9], atol=1e-3)
