"""What happens around the steps of a training: hooks, events, checkpoints, updates, the end."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.errors import NonFiniteError, UnsupportedError, UserError
from portwright.job.console import Console
from portwright.tensorflow import CerebrasEstimator, CSEstimatorSpec, Estimator, EstimatorSpec, RunConfig
from portwright.tensorflow.monitor import Monitor, showing_progress, watching

v1 = tf.compat.v1
X = np.arange(12, dtype=np.float32).reshape(6, 2) / 10


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(2)


def endless() -> tf.data.Dataset:
    return data().repeat()


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    output = tf.matmul(features, v1.get_variable("w", [2, 1], initializer=tf.ones_initializer()))
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"o": output, "twice": 2 * output})
    loss = tf.reduce_mean(tf.square(output - labels))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op, predictions=output)


def make(folder: Path, model: Callable[..., Any] = model_fn, **config: Any) -> Estimator:
    return Estimator(model, str(folder), RunConfig(tf_random_seed=1, **config))


class Note(v1.train.SessionRunHook):  # type: ignore[misc]
    """Wants to see every step, as any hook of a user's does."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.has_ended = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.num_steps += 1

    def end(self, session: Any) -> None:
        self.has_ended = True


def events(folder: Path) -> list[tuple[int, str, float | None]]:
    found = []
    for path in sorted(folder.glob("events*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                is_rate = value.tag.endswith("/sec")
                found.append((event.step, value.tag, None if is_rate else round(value.simple_value, 5)))
            if event.HasField("session_log"):
                found.append((event.step, f"log {event.session_log.status}", None))
    return found


def test_steps_without_hooks_leave_the_same_traces_as_steps_with_hooks(tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {"quick": [], "seen": []}
    for name, hooks in (("quick", []), ("seen", [Note()])):
        estimator = make(
            tmp_path / name,
            save_checkpoints_steps=7,
            save_summary_steps=4,
            log_step_count_steps=5,
            keep_checkpoint_max=2,
        )

        def on_log(step: int, values: Any, new: Sequence[float], name: str = name) -> None:
            losses[name].extend(new)

        with watching(Monitor(on_log=on_log, log_steps=6)):
            estimator.train(endless, hooks=hooks, max_steps=20)
    assert losses["quick"] == losses["seen"]
    assert len(losses["quick"]) == 20
    assert events(tmp_path / "quick") == events(tmp_path / "seen")
    assert {tag for _, tag, _ in events(tmp_path / "quick")} == {"loss", "global_step/sec", "log 1", "log 3"}
    assert [step for step, tag, _ in events(tmp_path / "quick") if tag == "loss"] == [1, 5, 9, 13, 17]
    for name in ("quick", "seen"):
        assert sorted(path.name for path in (tmp_path / name).glob("*.index")) == [
            "model.ckpt-14.index",
            "model.ckpt-20.index",
        ]


def test_hooks_of_tensorflow_see_their_steps_though_most_are_skipped(tmp_path: Path) -> None:
    logged: list[Any] = []
    hook = v1.train.LoggingTensorHook(
        ["w/Read/ReadVariableOp"], every_n_iter=4, formatter=lambda values: str(logged.append(values))
    )
    estimator = make(tmp_path, save_checkpoints_steps=100, log_step_count_steps=None, save_summary_steps=0)
    estimator.train(endless, hooks=[hook, v1.train.StopAtStepHook(last_step=10)])
    assert estimator.get_variable_value("global_step") == 10
    assert len(logged) == 3  # of runs 0, 4 and 8


def test_a_hook_is_ended_when_the_data_ends_and_not_when_the_model_fails(tmp_path: Path) -> None:
    hook = Note()
    make(tmp_path).train(data, hooks=[hook])
    assert (hook.num_steps, hook.has_ended) == (3, True)

    def failing() -> tf.data.Dataset:
        return data().map(lambda x, y: (tf.debugging.check_numerics(x / 0, "bad"), y))

    hook = Note()
    with pytest.raises(tf.errors.InvalidArgumentError):
        make(tmp_path).train(failing, hooks=[hook])
    assert not hook.has_ended


def test_nan_stops_before_it_is_saved(tmp_path: Path) -> None:
    def diverging(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = model_fn(features, labels, mode)
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        with tf.control_dependencies([step]):
            return spec._replace(loss=tf.math.log(3.5 - step))

    for hooks in ([], [Note()]):
        folder = tmp_path / str(len(hooks))
        with pytest.raises(v1.train.NanLossDuringTrainingError, match="NaN") as caught:
            make(folder, diverging, save_checkpoints_steps=1).train(endless, hooks=hooks)
        assert isinstance(caught.value, NonFiniteError)
        saved = tf.train.latest_checkpoint(str(folder))
        assert saved is not None
        assert tf.train.load_variable(saved, "global_step") < 5


def test_updates_of_keras_layers_are_run_and_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(features: Any, labels: Any, mode: str, runs_them: bool) -> EstimatorSpec:
        layer = tf.keras.layers.BatchNormalization(momentum=0.5, name="norm")
        spec = model_fn(layer(features, training=mode == "train"), labels, mode)
        return spec._replace(train_op=tf.group(spec.train_op, *layer.updates)) if runs_them else spec

    left = functools.partial(build, runs_them=False)
    by_hand = functools.partial(build, runs_them=True)
    means = []
    for name, model in (("left", left), ("by_hand", by_hand)):
        estimator = make(tmp_path / name, model)
        estimator.train(endless, steps=1)
        means.append(estimator.get_variable_value("norm/moving_mean"))
        told = capsys.readouterr().err
        assert ("2 updates of Keras layers" in told) == (name == "left")
    assert np.allclose(means[0], X[:2].mean(axis=0) / 2)
    assert np.array_equal(means[0], means[1])


def test_updates_made_for_a_keras_input_are_left_alone(tmp_path: Path) -> None:
    def sequential(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        model = tf.keras.Sequential(
            [tf.keras.layers.Input([2]), tf.keras.layers.BatchNormalization(name="norm")]
        )
        return model_fn(model(features, training=mode == "train"), labels, mode)

    estimator = make(tmp_path, sequential)
    estimator.train(endless, steps=2)
    assert np.all(estimator.get_variable_value("norm/moving_mean") > 0)
    assert estimator.evaluate(data)["global_step"] == 2


def test_a_metric_of_keras_may_be_updated_in_training_and_counts_in_evaluation_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = model_fn(features, labels, mode)
        metric = tf.keras.metrics.MeanAbsoluteError()
        metric.update_state(labels, spec.predictions)
        return spec._replace(eval_metric_ops={"error": metric})

    estimator = make(tmp_path, measured)
    estimator.train(endless, steps=2)
    assert "updates of Keras layers" not in capsys.readouterr().err
    told = estimator.evaluate(data)
    expected = np.abs(X @ estimator.get_variable_value("w") - X[:, :1]).mean()
    assert told["error"] == pytest.approx(expected, rel=1e-5)


def test_a_step_may_count_otherwise_than_by_one(tmp_path: Path) -> None:
    def every_second(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = model_fn(features, labels, mode)
        count = v1.get_variable("calls", [], tf.int64, tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([count.assign_add(1)]):
            is_due = tf.equal(count.read_value() % 2, 0)
            train_op = v1.train.get_global_step().assign_add(tf.cast(is_due, tf.int64))
        return spec._replace(train_op=train_op)

    estimator = make(tmp_path, every_second)
    estimator.train(endless, steps=3)
    assert (estimator.get_variable_value("global_step"), estimator.get_variable_value("calls")) == (3, 6)


def test_an_empty_input_makes_no_step(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    estimator.train(lambda: data().take(0))
    assert estimator.get_variable_value("global_step") == 0
    assert estimator.evaluate(lambda: data().take(0))["loss"] == 0


def test_listeners_hear_of_saves_and_can_stop(tmp_path: Path) -> None:
    heard: list[int] = []

    class Listener(v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> bool:
            heard.append(int(global_step_value))
            return global_step_value >= 2

    estimator = make(tmp_path, save_checkpoints_steps=1)
    estimator.train(endless, saving_listeners=[Listener()])
    assert heard == [0, 1, 2]
    nothing_saves = make(tmp_path / "x", save_checkpoints_steps=None, save_checkpoints_secs=None)
    with pytest.raises(ValueError, match="nothing saves checkpoints"):
        nothing_saves.train(data, saving_listeners=[Listener()])
    nothing_saves.train(data)
    assert nothing_saves.latest_checkpoint() is None


@pytest.mark.parametrize("kind", ["tensors", "list", "dict", "v1 dataset", "iterator", "next", "queue"])
def test_inputs_of_every_kind(kind: str, tmp_path: Path) -> None:
    def by_dict(features: Any, mode: str) -> EstimatorSpec:
        return model_fn(features["x"], features["y"], mode)

    def queue() -> Any:
        x = v1.train.batch([v1.train.limit_epochs(tf.constant(X), num_epochs=1)], 2, enqueue_many=True)
        return x, x[:, :1]

    inputs: dict[str, Callable[[], Any]] = {
        "tensors": lambda: (tf.constant(X), tf.constant(X[:, :1])),
        "list": lambda: [tf.constant(X), tf.constant(X[:, :1])],
        "dict": lambda: data().map(lambda x, y: {"x": x, "y": y}),
        "v1 dataset": lambda: v1.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(2),
        "iterator": lambda: v1.data.make_initializable_iterator(data()),
        "next": lambda: v1.data.make_one_shot_iterator(data()).get_next(),
        "queue": queue,
    }
    estimator = make(tmp_path, by_dict if kind == "dict" else model_fn)
    estimator.train(inputs[kind], steps=3)
    assert estimator.get_variable_value("global_step") == 3


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda e: e.train(data, steps=0), "steps must be more than 0; received 0"),
        (lambda e: e.train(data, steps=1, max_steps=1), "Both steps"),
        (lambda e: e.evaluate(data, steps=-1), "more than 0"),
        (lambda e: e.train(data, hooks=[3]), "SessionRunHook"),
        (lambda e: e.train(data, saving_listeners=[3]), "CheckpointSaverListener"),
        (lambda e: e.train(lambda: (1, 2, 3)), "3 items"),
        (lambda e: e.train(lambda: None), "returned nothing"),
        (lambda e: e.get_variable_names(), "no checkpoint in"),
        (
            lambda e: e.evaluate(data, checkpoint_path="/none/model.ckpt-3"),
            "no checkpoint /none/model.ckpt-3",
        ),
        (lambda e: list(e.predict(data, predict_keys=["oo"])), "Did you mean 'o'"),
    ],
)
def test_bad_calls_are_refused(act: Callable[[Estimator], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        act(make(tmp_path))


@pytest.mark.parametrize(
    ("model", "params", "words"),
    [
        (None, None, "model_fn is None"),
        (lambda x: x, None, "no argument features"),
        (lambda features, foo: features, None, "cannot give: foo"),
        (model_fn, {"a": 1}, "no argument params"),
    ],
)
def test_bad_model_functions_are_refused(model: Any, params: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        Estimator(model, str(tmp_path), params=params)


def test_a_model_function_must_return_a_spec_and_take_the_labels_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it returned None"):
        make(tmp_path, lambda features, labels: None).train(data)
    with pytest.raises(ValueError, match="does not take labels"):
        make(tmp_path, lambda features, mode: None).train(data)


def test_members_cannot_be_overridden_but_added(tmp_path: Path) -> None:
    class Overriding(Estimator):
        def train(self, *args: Any) -> Any: ...  # type: ignore[override]

    class Adding(Estimator):
        def other(self) -> int:
            return 1

    with pytest.raises(ValueError, match="overrides train"):
        Overriding(model_fn, str(tmp_path))
    assert Adding(model_fn, str(tmp_path)).other() == 1


def test_config_and_params_are_copies(tmp_path: Path) -> None:
    params = {"a": [1]}
    estimator = Estimator(lambda features, params: None, str(tmp_path), params=params)
    params["a"].append(2)
    estimator.params["a"].append(3)
    estimator.config._tf_random_seed = 9
    assert (estimator.params, estimator.config.tf_random_seed) == ({"a": [1]}, None)
    with pytest.raises(ValueError, match="in the constructor and"):
        Estimator(model_fn, "/a", RunConfig(model_dir="/b"))


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_a_checkpoint_of_another_model_is_refused_with_its_variables(verb: str, tmp_path: Path) -> None:
    def with_extra(size: int) -> Callable[..., Any]:
        def wider(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            v1.get_variable("extra", [size])
            return model_fn(features, labels, mode)

        return wider

    def use(size: int) -> None:
        estimator = make(tmp_path, with_extra(size))
        {
            "train": lambda: estimator.train(data),
            "evaluate": lambda: estimator.evaluate(data),
            "predict": lambda: list(estimator.predict(data)),
        }[verb]()

    make(tmp_path).train(data)
    with pytest.raises(ValueError, match="does not fit the model: it has no extra"):
        use(3)
    other = tmp_path / "other"
    make(other, with_extra(4)).train(data)
    tmp_path = other
    with pytest.raises(ValueError, match=r"extra has shape \[4\] there and \[3\] here"):
        use(3)


def test_evaluation_and_prediction_write_and_yield(tmp_path: Path) -> None:
    def measured(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = model_fn(features, labels, mode)
        if mode != "eval":
            return spec
        metric = tf.keras.metrics.Mean()
        metric.update_state(labels)
        metrics = {"keras": metric, "vector": v1.metrics.mean_tensor(tf.ensure_shape(labels, [2, 1]))}
        return spec._replace(eval_metric_ops=metrics)

    estimator = make(tmp_path, measured)
    estimator.train(data)
    results = estimator.evaluate(data, name="dev")
    assert results["keras"] == pytest.approx(X[:, 0].mean())
    assert results["vector"].shape == (2, 1)
    written = events(tmp_path / "eval_dev")
    assert [tag for _, tag, _ in written] == ["keras", "loss", "vector", "checkpoint_path"]
    assert {step for step, _, _ in written} == {3}
    assert estimator.eval_dir() == str(tmp_path / "eval")
    assert [sorted(p) for p in estimator.predict(data, predict_keys="o")] == [["o"]] * 6
    batches = list(estimator.predict(data, yield_single_examples=False))
    assert [batch["twice"].shape for batch in batches] == [(2, 1)] * 3


def test_metrics_cannot_take_the_names_of_estimator(tmp_path: Path) -> None:
    def named(name: str) -> Callable[..., Any]:
        def measured(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            return model_fn(features, labels, mode)._replace(eval_metric_ops={name: v1.metrics.mean(1.0)})

        return measured

    for name in ("loss", "global_step"):
        with pytest.raises(ValueError, match=f"named '{name}'"):
            make(tmp_path, named(name)).evaluate(data)


def test_predictions_that_cannot_be_split_say_so(tmp_path: Path) -> None:
    def uneven(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        return EstimatorSpec(mode, predictions={"all": features, "sum": tf.reduce_sum(features)})

    estimator = make(tmp_path, uneven)
    with pytest.raises(ValueError, match=r"all has 2, sum is one value.*yield_single_examples"):
        list(estimator.predict(data))
    assert len(list(estimator.predict(data, yield_single_examples=False))) == 3


def test_several_replicas_are_not_run_in_silence_as_one(tmp_path: Path) -> None:
    class Two:
        num_replicas_in_sync = 2

    with pytest.raises(UnsupportedError, match="train_distribute is a Two of 2 replicas"):
        make(tmp_path, train_distribute=Two()).train(data)


def test_the_estimator_of_cerebras_takes_host_calls_and_its_own_arguments(tmp_path: Path) -> None:
    def with_host_call(features: Any, labels: Any, mode: str, params: Any) -> CSEstimatorSpec:
        spec = model_fn(features, labels, mode)
        if mode == "infer":
            return CSEstimatorSpec(mode, predictions=spec.predictions)
        call = (lambda y: {"mean": v1.metrics.mean(y)}, [labels]) if mode == "eval" else None
        return CSEstimatorSpec(mode, host_call=call, loss=spec.loss, train_op=spec.train_op)

    estimator = CerebrasEstimator(
        with_host_call, model_dir=str(tmp_path), compile_dir=None, config=RunConfig(), params={}
    )
    assert estimator.train(data, max_steps=2, use_cs=False) is estimator
    assert estimator.evaluate(data)["mean"] == pytest.approx(X[:, 0].mean())
    assert len(list(estimator.predict(data, num_samples=4))) == 4


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="is a file, not a folder"):
        make(tmp_path / "file" / "model").train(data)


def test_an_input_function_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="input_fn must be a function"):
        make(tmp_path).train(data())  # type: ignore[arg-type]


def test_a_hook_that_saves_can_serve_twice(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
    for last in (2, 4):
        estimator.train(endless, hooks=[saver], max_steps=last)
        assert estimator.get_variable_value("global_step") == last
    assert len(saver._listeners) == 1


def test_a_strategy_of_one_replica_trains_as_none(tmp_path: Path) -> None:
    plain, alone = (
        make(tmp_path / "plain"),
        make(tmp_path / "alone", train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0")),
    )
    for estimator in (plain, alone):
        estimator.train(data)
    assert np.array_equal(plain.get_variable_value("w"), alone.get_variable_value("w"))


def test_a_terminal_shows_a_bar_unless_losses_are_logged_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for verbosity, is_shown in ((v1.logging.WARN, True), (v1.logging.INFO, False)):
        monkeypatch.setattr(v1.logging, "get_verbosity", lambda level=verbosity: level)
        screen = Terminal()
        monitor = Monitor(console=Console(stream=screen))
        with showing_progress(monitor, 3, 10):
            if monitor.on_log is not None:
                monitor.on_log(7, {"loss": 0.25}, [0.25])
        assert ("train 7/10" in screen.getvalue()) == is_shown
        assert ("loss 0.2500" in screen.getvalue()) == is_shown
