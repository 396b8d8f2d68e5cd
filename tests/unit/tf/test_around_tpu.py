"""TPUEstimator where there is no TPU: batch sizes in params, metrics and host calls as functions, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UnsupportedError, UserError
from portwright.tensorflow import tpu

v1 = tf.compat.v1


class Seen:
    """What model_fn and input_fn were given."""

    def __init__(self) -> None:
        self.params: list[tuple[str, dict[str, Any]]] = []

    def input_fn(self, params: dict[str, Any]) -> Any:
        self.params.append(("input", dict(params)))
        x = np.arange(12, dtype=np.float32)[:, None]
        return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).batch(
            params["batch_size"], drop_remainder=True
        )

    def model_fn(self, features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        self.params.append((mode, dict(params)))
        weight = v1.get_variable("weight", [1], initializer=v1.ones_initializer())
        calls = v1.get_variable("calls", [], tf.int32, v1.zeros_initializer(), trainable=False)
        predicted = features["x"] * weight
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, {"y": predicted})
        loss = tf.reduce_mean(tf.math.squared_difference(predicted, labels))
        if mode == "eval":

            def metric_fn(labels: Any, predicted: Any) -> Any:
                return {"error": v1.metrics.mean_absolute_error(labels, predicted)}

            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, predicted]))
        optimizer = tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            host_call=(
                lambda step: [v1.assign_add(calls, 1)],
                {"step": tf.reshape(v1.train.get_global_step(), [1])},
            ),
            scaffold_fn=lambda: v1.train.Scaffold(),
        )


def make(seen: Seen, tmp_path: Path, **options: Any) -> Any:
    config = tpu.RunConfig(
        tpu.TPUConfig(iterations_per_loop=100), master="", model_dir=str(tmp_path), log_step_count_steps=None
    )
    sizes = {"train_batch_size": 4, "eval_batch_size": 3, "predict_batch_size": 2, **options}
    return tpu.TPUEstimator(seen.model_fn, config=config, params={"rate": 1}, use_tpu=False, **sizes)


def test_trains_evaluates_and_predicts_with_the_batch_size_of_each(tmp_path: Path) -> None:
    seen = Seen()
    estimator = make(seen, tmp_path)
    estimator.train(seen.input_fn, steps=3)
    metrics = estimator.evaluate(seen.input_fn, steps=2)
    predicted = list(estimator.predict(seen.input_fn))
    given = {"rate": 1}
    assert seen.params == [
        ("input", {**given, "batch_size": 4}),
        ("train", {**given, "batch_size": 4, "use_tpu": False}),
        ("input", {**given, "batch_size": 3}),
        ("eval", {**given, "batch_size": 3, "use_tpu": False}),
        ("input", {**given, "batch_size": 2}),
        ("infer", {**given, "batch_size": 2, "use_tpu": False}),
    ]
    assert estimator.params == given
    assert estimator.get_variable_value("calls") == 3  # the host call ran with every step
    weight = estimator.get_variable_value("weight")[0]
    assert metrics["error"] == pytest.approx(float(np.mean(np.arange(6)) * (2 - weight)), rel=1e-5)
    assert len(predicted) == 12


def test_exports_without_a_batch_size(tmp_path: Path) -> None:
    seen = Seen()
    estimator = make(seen, tmp_path)
    estimator.train(seen.input_fn, steps=1)
    receiver = pt.export.build_raw_serving_input_receiver_fn({"x": tf.ones([1, 1])})
    path = estimator.export_saved_model(str(tmp_path / "out"), receiver).decode()
    assert seen.params[-1] == ("infer", {"rate": 1, "use_tpu": False})
    found = tf.saved_model.load(path).signatures["serving_default"](x=tf.ones([3, 1]))["y"]
    np.testing.assert_allclose(found, np.full((3, 1), estimator.get_variable_value("weight")[0]))


def test_cross_shard_optimizer_is_the_optimizer_itself() -> None:
    values = []
    for wrap in (lambda o: o, tpu.CrossShardOptimizer):
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("weight", [2], initializer=v1.ones_initializer())
            step = wrap(v1.train.MomentumOptimizer(0.1, 0.9)).minimize(tf.reduce_sum(weight**2))
            session.run(v1.global_variables_initializer())
            session.run(step)
            session.run(step)
            values.append((sorted(v.name for v in v1.global_variables()), session.run(weight).tolist()))
    assert values[0] == values[1]


def test_a_run_config_keeps_its_tpu_config() -> None:
    config = tpu.RunConfig(tpu.TPUConfig(num_shards=8), save_checkpoints_steps=7)
    assert config.replace(model_dir="/x").tpu_config.num_shards == 8
    assert config.replace(tpu_config=tpu.TPUConfig(num_shards=4)).tpu_config.num_shards == 4
    assert config.save_checkpoints_steps == 7
    assert config.tpu_config.per_host_input_for_training == tpu.InputPipelineConfig.PER_HOST_V1
    assert tpu.TPUConfig(per_host_input_for_training=False).per_host_input_for_training == 1


def test_an_estimator_spec_may_come_instead(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        weight = v1.get_variable("weight", [1])
        loss = tf.reduce_mean(features["x"] * weight)
        return pt.EstimatorSpec(mode, loss=loss, train_op=v1.assign_add(v1.train.get_global_step(), 1))

    estimator = tpu.TPUEstimator(model_fn, str(tmp_path), tpu.RunConfig(), use_tpu=False, train_batch_size=4)
    estimator.train(Seen().input_fn, max_steps=2)
    assert estimator.get_variable_value("global_step") == 2


def _model(features: Any, labels: Any, mode: str, params: Any) -> Any: ...


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tpu.TPUConfig(iterations_per_loop=0), "iterations_per_loop is 0"),
        (lambda: tpu.TPUConfig(iterations_per_loop="5x"), "iterations_per_loop is '5x'"),
        (lambda: tpu.TPUConfig(num_shards=-1), "num_shards is -1"),
        (lambda: tpu.TPUConfig(num_cores_per_replica=3), "num_cores_per_replica is 3"),
        (lambda: tpu.TPUConfig(input_partition_dims=[1]), "without what it needs"),
        (
            lambda: tpu.TPUConfig(eval_training_input_configuration=3),
            "eval_training_input_configuration is 3",
        ),
        (lambda: tpu.RunConfig(master="a", cluster=object()), "both set"),
        (lambda: tpu.TPUEstimator(_model, use_tpu=False), "config is a NoneType"),
        (lambda: tpu.TPUEstimator(_model, config=pt.RunConfig(), use_tpu=False), "config is a RunConfig"),
        (
            lambda: tpu.TPUEstimator(_model, config=tpu.RunConfig(), params={"batch_size": 1}, use_tpu=False),
            "params has batch_size",
        ),
        (
            lambda: tpu.TPUEstimator(_model, config=tpu.RunConfig(), train_batch_size=0, use_tpu=False),
            "mode 'train' is 0",
        ),
        (
            lambda: tpu.TPUEstimator(lambda features: 1, config=tpu.RunConfig(), use_tpu=False),
            "does not take params",
        ),
        (lambda: tpu.TPUEstimatorSpec("eval", eval_metrics=3), "eval_metrics is 3"),
        (lambda: tpu.TPUEstimatorSpec("eval", eval_metrics=(print, 3)), "tensors of eval_metrics are 3"),
        (lambda: tpu.TPUEstimatorSpec("train", host_call=(1, [])), "host_call is"),
        (lambda: tpu.CrossShardOptimizer(3), "opt is a int"),
        (lambda: tpu.CrossShardOptimizer(v1.train.AdamOptimizer(), "none"), "reduction is 'none'"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_a_tpu_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="use_tpu=False"):
        tpu.TPUEstimator(_model, str(tmp_path), tpu.RunConfig(), train_batch_size=8)


def test_an_input_fn_without_params_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"input_fn .* does not take params"):
        make(Seen(), tmp_path).train(lambda: None, steps=1)


def test_a_host_call_writes_summaries(tmp_path: Path) -> None:
    def host_fn(step: Any, loss: Any) -> Any:
        with tf.summary.create_file_writer(str(tmp_path / "host")).as_default():
            tf.summary.scalar("host_loss", loss[0], step=step[0])
            return v1.summary.all_v2_summary_ops()

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        loss = tf.reduce_mean(features["x"]) * v1.get_variable(
            "weight", [], initializer=v1.ones_initializer()
        )
        step = v1.train.get_global_step()
        tensors = [tf.reshape(step, [1]), tf.reshape(loss, [1])]
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=v1.assign_add(step, 1), host_call=(host_fn, tensors)
        )

    config = tpu.RunConfig(model_dir=str(tmp_path / "model"), log_step_count_steps=None)
    estimator = tpu.TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=4)
    estimator.train(Seen().input_fn, steps=3)
    (events,) = (tmp_path / "host").iterdir()
    tags = [value.tag for event in v1.train.summary_iterator(str(events)) for value in event.summary.value]
    assert tags == ["host_loss"] * 3
