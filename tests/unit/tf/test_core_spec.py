"""EstimatorSpec and host calls: what fits a mode, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow import CSEstimatorSpec, EstimatorSpec, ModeKeys
from portwright.tensorflow.spec import host_call_to_eval_metric_ops, validate_host_call

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def one() -> Any:
    return tf.constant(1.0)


def of_other_graph() -> Any:
    with tf.Graph().as_default():
        return one()


def test_modes_have_the_values_of_tf_estimator() -> None:
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT, ModeKeys.INFERENCE) == (
        "train",
        "eval",
        "infer",
        "infer",
    )


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: EstimatorSpec("train"), ValueError, "no loss|no train_op"),
        (lambda: EstimatorSpec("train", loss=one()), ValueError, "no train_op"),
        (lambda: EstimatorSpec("eval"), ValueError, "no loss"),
        (lambda: EstimatorSpec("infer"), ValueError, "no predictions"),
        (lambda: EstimatorSpec("eval", loss=tf.constant([1.0, 2.0])), ValueError, "one number"),
        (lambda: EstimatorSpec("eval", loss=1.0), TypeError, "must be a tensor; received 1.0"),
        (lambda: EstimatorSpec("train", loss=one(), train_op="x"), TypeError, "received 'x'"),
        (lambda: EstimatorSpec("infer", predictions={"a": 1}), TypeError, "'a'"),
        (lambda: EstimatorSpec("infer", predictions=[one()]), TypeError, "predictions must be"),
        (lambda: EstimatorSpec("eval", loss=one(), evaluation_hooks=[3]), TypeError, "evaluation_hooks"),
        (lambda: EstimatorSpec("eval", loss=one(), scaffold=3), TypeError, "scaffold"),
        (lambda: EstimatorSpec("eval", loss=of_other_graph()), ValueError, "another graph"),
        (lambda: EstimatorSpec("eval", loss=one(), eval_metric_ops=[1]), TypeError, "must be a dict"),
        (lambda: EstimatorSpec("eval", loss=one(), eval_metric_ops={"a": [1, 2]}), TypeError, "'a'"),
        (
            lambda: EstimatorSpec("eval", loss=one(), eval_metric_ops={"a": tf.keras.metrics.Mean()}),
            ValueError,
            "never updated",
        ),
        (lambda: EstimatorSpec("eval", loss=one())._replace(mode="train"), ValueError, "cannot change"),
        (lambda: EstimatorSpec("infer", predictions=one(), export_outputs=3), TypeError, "export_outputs"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def test_what_fits_is_completed() -> None:
    spec = EstimatorSpec("train", loss=tf.constant([1.0]), train_op=v1.get_variable("v", []))
    assert spec.loss.shape.rank == 0
    assert isinstance(spec.train_op, tf.Operation)
    assert isinstance(spec.scaffold, v1.train.Scaffold)
    assert (spec.predictions, spec.eval_metric_ops, spec.training_hooks) == ({}, {}, ())
    assert list(EstimatorSpec("infer", predictions={"a": one()}).export_outputs) == ["serving_default"]
    assert EstimatorSpec("eval", loss=one())._replace(predictions={"x": one()}).predictions.keys() == {"x"}


def test_variables_of_keras_metrics_are_initialised_with_the_others() -> None:
    metric = tf.keras.metrics.Mean()
    metric.update_state(one())
    spec = EstimatorSpec("eval", loss=one(), eval_metric_ops={"m": metric})
    assert {v.name for v in metric.variables} <= {v.name for v in v1.local_variables()}
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        session.run(spec.eval_metric_ops["m"][1])
        assert session.run(spec.eval_metric_ops["m"][0]) == 1.0


@pytest.mark.parametrize("bad", [3, "abc", (1, [2]), (max, 3), (max, [1], 2), (max,), (max, [], [], [])])
def test_a_malformed_host_call_is_refused(bad: Any) -> None:
    with pytest.raises(UserError, match="host_call"):
        CSEstimatorSpec("eval", host_call=bad, loss=one())


def test_host_calls_become_metrics() -> None:
    def metrics(x: Any, y: Any) -> dict[str, Any]:
        return {"mean": v1.metrics.mean(x), "not a metric": y}

    assert list(host_call_to_eval_metric_ops((metrics, [one(), one()]))) == ["mean"]
    assert list(host_call_to_eval_metric_ops((lambda x: [v1.metrics.mean(x)], (one(),)))) == ["elem_0"]
    assert list(host_call_to_eval_metric_ops({"acc": v1.metrics.mean(one())})) == ["acc"]
    assert host_call_to_eval_metric_ops(None) == {}
    assert validate_host_call([]) == ()
    with pytest.raises(TypeError, match="returned 3"):
        host_call_to_eval_metric_ops((lambda: 3, []))


@pytest.mark.parametrize("spec", [EstimatorSpec, CSEstimatorSpec])
def test_a_host_call_is_made_into_metrics_when_they_are_evaluated(spec: type[EstimatorSpec]) -> None:
    """Seed 000: "The EstimatorSpec takes: ... `host_call (dict)`: { "accuracy": tf.compat.v1.metrics.accuracy() }"."""
    calls = []

    def metrics(x: Any) -> dict[str, Any]:
        calls.append(x)
        return {"m": v1.metrics.mean(x)}

    call = (metrics, [one()])
    trained = spec("train", host_call=call, loss=one(), train_op=tf.no_op())
    assert (trained.host_call, trained.eval_metric_ops, calls) == (call, {}, [])
    found = spec("eval", host_call=call, loss=one())
    assert list(found.eval_metric_ops) == ["m"]
    assert found._replace(predictions={"x": one()}).eval_metric_ops == found.eval_metric_ops
    made = {"accuracy": v1.metrics.accuracy(one(), one())}
    assert spec("eval", host_call=made, loss=one()).eval_metric_ops == made
    assert spec("eval", loss=one()).host_call is None
    with pytest.raises(ValueError, match="Both host_call and eval_metric_ops"):
        spec("eval", host_call=call, loss=one(), eval_metric_ops=made)
    with pytest.raises(UserError, match="host_call"):
        spec("train", host_call=3, loss=one(), train_op=tf.no_op())
    assert CSEstimatorSpec("eval", call, loss=one()).host_call is call
