"""train_and_evaluate, its exporters, and the hooks that stop early."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UnsupportedError, UserError
from portwright.tensorflow import early_stopping, experimental, train_eval

v1 = tf.compat.v1


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    weight = v1.get_variable("weight", [1], initializer=v1.zeros_initializer())
    predicted = features["x"] * weight
    if mode == "infer":
        return pt.EstimatorSpec(mode, {"y": predicted})
    loss = tf.reduce_mean(tf.math.squared_difference(predicted, labels))
    if mode == "eval":
        return pt.EstimatorSpec(mode, loss=loss, eval_metric_ops={"weight": v1.metrics.mean(weight)})
    train_op = v1.train.GradientDescentOptimizer(params["rate"]).minimize(loss, v1.train.get_global_step())
    return pt.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn() -> Any:
    x = np.ones((4, 1), np.float32)
    return tf.data.Dataset.from_tensors(({"x": x}, 3 * x)).repeat()


def serving_fn() -> Any:
    return pt.export.build_raw_serving_input_receiver_fn({"x": tf.ones([1, 1])})()


def make(tmp_path: Path, save_every: int = 5, rate: float = 0.1) -> Any:
    config = pt.RunConfig(
        model_dir=str(tmp_path), save_checkpoints_steps=save_every, log_step_count_steps=None
    )
    return pt.Estimator(model_fn, config=config, params={"rate": rate})


def evaluated_steps(tmp_path: Path) -> list[int]:
    return list(early_stopping.read_eval_metrics(str(tmp_path / "eval")))


def test_evaluates_after_each_checkpoint_and_at_the_end(tmp_path: Path) -> None:
    train = pt.TrainSpec(input_fn, max_steps=12)
    metrics, exports = train_eval.train_and_evaluate_locally(
        make(tmp_path), train, pt.EvalSpec(input_fn, steps=2, throttle_secs=0)
    )
    assert metrics is not None
    assert metrics["global_step"] == 12
    assert exports == []
    assert evaluated_steps(tmp_path) == [5, 10, 12]


def test_resumes_without_evaluating_what_it_resumes_from(tmp_path: Path) -> None:
    make(tmp_path).train(input_fn, max_steps=10)
    train_eval.train_and_evaluate_locally(
        make(tmp_path),
        pt.TrainSpec(input_fn, max_steps=16),
        pt.EvalSpec(input_fn, steps=1, throttle_secs=0),
    )
    assert evaluated_steps(tmp_path) == [15, 16]


def test_throttle_leaves_checkpoints_out_but_never_the_last(tmp_path: Path) -> None:
    train_eval.train_and_evaluate_locally(
        make(tmp_path),
        pt.TrainSpec(input_fn, max_steps=20),
        pt.EvalSpec(input_fn, steps=1, throttle_secs=3600),
    )
    assert evaluated_steps(tmp_path) == [5, 20]


def test_nothing_left_to_train(tmp_path: Path) -> None:
    make(tmp_path).train(input_fn, max_steps=5)
    spec = pt.EvalSpec(input_fn, steps=1)
    assert pt.train_and_evaluate(make(tmp_path), pt.TrainSpec(input_fn, max_steps=5), spec) == (None, None)


def test_exporters(tmp_path: Path) -> None:
    exporters = [
        pt.LatestExporter("latest", serving_fn, exports_to_keep=2),
        pt.FinalExporter("final", serving_fn),
        pt.BestExporter("best", serving_fn, compare_fn=lambda best_eval_result, current_eval_result: False),
    ]
    spec = pt.EvalSpec(input_fn, steps=1, throttle_secs=0, exporters=exporters)
    _, exports = pt.train_and_evaluate(make(tmp_path), pt.TrainSpec(input_fn, max_steps=15), spec)
    folders = {name: sorted((tmp_path / "export" / name).iterdir()) for name in ("latest", "final", "best")}
    assert {name: len(found) for name, found in folders.items()} == {"latest": 2, "final": 1, "best": 1}
    assert exports == [str(folders["latest"][-1]).encode(), str(folders["final"][0]).encode(), None]
    latest = tf.saved_model.load(str(folders["latest"][-1])).signatures["serving_default"]
    found = latest(x=tf.constant([[2.0]]))["y"].numpy()
    np.testing.assert_allclose(found, 2 * make(tmp_path).get_variable_value("weight")[None], rtol=1e-6)


def test_best_exporter_knows_the_evaluations_of_a_run_before(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    estimator.train(input_fn, max_steps=20)
    good = estimator.evaluate(input_fn, steps=1)
    exporter = pt.BestExporter("best", serving_fn)
    checkpoint, folder = estimator.latest_checkpoint(), str(tmp_path / "best")
    assert exporter.export(
        estimator, folder, checkpoint, {"loss": good["loss"] + 1}, False
    )  # the first of a process
    assert exporter.export(estimator, folder, checkpoint, {"loss": good["loss"] + 2}, False) is None
    assert exporter.export(estimator, folder, checkpoint, {"loss": good["loss"]}, False)


def test_an_evaluator_ends_at_max_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path).train(input_fn, max_steps=5)
    cluster = '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    spec = pt.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0)
    assert pt.train_and_evaluate(make(tmp_path), pt.TrainSpec(input_fn, max_steps=5), spec) is None
    assert list(early_stopping.read_eval_metrics(str(tmp_path / "eval"))) == [5]


@pytest.mark.parametrize(
    ("make_hook", "expected"),
    [
        (
            lambda e: experimental.stop_if_lower_hook(e, "loss", 2.0, run_every_secs=None, run_every_steps=1),
            10,
        ),
        (
            lambda e: experimental.stop_if_higher_hook(
                e, "weight", 1.0, run_every_secs=None, run_every_steps=1
            ),
            5,
        ),
        (
            lambda e: experimental.stop_if_no_decrease_hook(
                e, "weight", 5, run_every_secs=None, run_every_steps=1
            ),
            10,
        ),
        (
            lambda e: experimental.stop_if_no_increase_hook(
                e, "weight", 5, run_every_secs=None, run_every_steps=1
            ),
            30,
        ),
    ],
)
def test_stops_early(tmp_path: Path, make_hook: Any, expected: int) -> None:
    """As the real one: the checkpoint and its evaluation come first, then the hooks of the user look."""
    estimator = make(tmp_path, rate=0.05)
    train = pt.TrainSpec(input_fn, max_steps=30, hooks=[make_hook(estimator)])
    pt.train_and_evaluate(estimator, train, pt.EvalSpec(input_fn, steps=1, throttle_secs=0))
    assert estimator.get_variable_value("global_step") == expected


def test_a_step_that_is_read_before_it_counts_is_not_missed(tmp_path: Path) -> None:
    """The number comes from the same run as the step that changes it: of two steps it may be the same."""
    asked: list[int] = []
    hook = experimental.make_early_stopping_hook(
        make(tmp_path), lambda: bool(asked.append(steps.run())), run_every_secs=None, run_every_steps=1
    )
    steps = SimpleNamespace(ended=0, run=lambda *_: steps.ended)
    with tf.Graph().as_default():
        v1.train.create_global_step()
        hook.begin()
        for steps.ended, read in ((9, 9), (10, 9), (11, 11)):
            hook.after_run(SimpleNamespace(session=steps), SimpleNamespace(results=read))
    assert asked == [9, 10, 11]


def test_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    hook = experimental.stop_if_lower_hook(estimator, "los", 1.0, run_every_secs=None, run_every_steps=1)
    with pytest.raises(UserError, match=r"no metric 'los'.*loss, weight"):
        pt.train_and_evaluate(
            estimator, pt.TrainSpec(input_fn, 30, [hook]), pt.EvalSpec(input_fn, steps=1, throttle_secs=0)
        )


def test_in_memory_evaluator(tmp_path: Path) -> None:
    estimator = make(tmp_path, save_every=1000)
    hook = experimental.InMemoryEvaluatorHook(estimator, input_fn, steps=1, name="mem", every_n_iter=4)
    estimator.train(input_fn, hooks=[hook], steps=6)
    seen = early_stopping.read_eval_metrics(estimator.eval_dir("mem"))
    assert list(seen) == [0, 4, 6]
    assert seen[6]["loss"] == pytest.approx(estimator.evaluate(input_fn, steps=1)["loss"])


def test_stops_at_the_step_of_a_checkpoint(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    estimator.train(input_fn, hooks=[experimental.make_stop_at_checkpoint_step_hook(estimator, 7)])
    assert estimator.get_variable_value("global_step") == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: pt.TrainSpec(3), "input_fn is 3"),
        (lambda e: pt.TrainSpec(input_fn, max_steps=0), "max_steps is 0"),
        (lambda e: pt.TrainSpec(input_fn, hooks=["x"]), "hooks holds a str"),
        (lambda e: pt.TrainSpec(input_fn, saving_listeners=[1]), "saving_listeners holds a int"),
        (lambda e: pt.EvalSpec(input_fn, steps=-1), "steps is -1"),
        (lambda e: pt.EvalSpec(input_fn, name=3), "name is 3"),
        (lambda e: pt.EvalSpec(input_fn, throttle_secs=-1), "throttle_secs is -1"),
        (lambda e: pt.EvalSpec(input_fn, exporters=[3]), "exporters holds a int"),
        (
            lambda e: pt.EvalSpec(input_fn, exporters=[pt.FinalExporter("a", serving_fn)] * 2),
            r"exporters are named \['a', 'a'\]",
        ),
        (lambda e: pt.LatestExporter("a", serving_fn, exports_to_keep=0), "exports_to_keep is 0"),
        (lambda e: pt.BestExporter("a", serving_fn, compare_fn=lambda a, b: True), "compare_fn is"),
        (lambda e: pt.train_and_evaluate(e, None, None), "train_spec is a NoneType"),
        (lambda e: experimental.make_early_stopping_hook(None, lambda: True), "estimator is a NoneType"),
        (lambda e: experimental.make_early_stopping_hook(e, 3), "should_stop_fn is 3"),
        (lambda e: experimental.make_early_stopping_hook(e, lambda: True, 60, 5), "both set"),
        (lambda e: experimental.make_early_stopping_hook(e, lambda: True, None), "both None"),
        (lambda e: experimental.InMemoryEvaluatorHook(e, input_fn, every_n_iter=0), "every_n_iter is 0"),
    ],
)
def test_bad_input(tmp_path: Path, call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(make(tmp_path))


def test_a_task_without_a_role_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(train_eval.ROLES, "evaluator")
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'
    )
    with pytest.raises(UnsupportedError, match="task 'evaluator'"):
        pt.train_and_evaluate(make(tmp_path), pt.TrainSpec(input_fn), pt.EvalSpec(input_fn))


def test_an_event_file_that_was_cut_off_counts_as_far_as_it_is_whole(tmp_path: Path) -> None:
    estimator = make(tmp_path)
    estimator.train(input_fn, max_steps=3)
    estimator.evaluate(input_fn, steps=1)
    (events,) = (tmp_path / "eval").glob("events.out.tfevents.*")
    whole = early_stopping.read_eval_metrics(str(tmp_path / "eval"))
    events.write_bytes(events.read_bytes() + b"\x18\0\0\0\0\0\0\0cut")
    assert early_stopping.read_eval_metrics(str(tmp_path / "eval")) == whole
    assert pt.BestExporter("best", serving_fn)._best_so_far(str(tmp_path / "eval/*.tfevents.*")) == whole[3]
    assert early_stopping.read_eval_metrics(str(tmp_path / "gone")) == {}


def test_a_worker_waits_for_the_chiefs_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = make(tmp_path)
    estimator.train(input_fn, max_steps=5)
    slept: list[float] = []
    monkeypatch.setattr(early_stopping.time, "sleep", slept.append)
    hook = early_stopping._AwaitCheckpointHook(str(tmp_path), 6, 0.5)

    class Context:
        stopped = False

        def request_stop(self) -> None:
            self.stopped = True

    context = Context()
    for before in (3, 5):  # the step's number before it counted
        hook.after_run(context, v1.train.SessionRunValues(before, None, None))
    assert (slept, context.stopped) == ([0.5], False)
    estimator.train(input_fn, max_steps=6)
    hook.after_run(context, v1.train.SessionRunValues(5, None, None))
    assert context.stopped
