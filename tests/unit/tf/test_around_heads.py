"""Heads by themselves: losses and metrics against numpy, labels of every kind, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UserError

v1 = tf.compat.v1

LOGITS = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def run(make: Any) -> Any:
    """What the tensors of `make()` are, with tables and variables initialised."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        found = make()
        session.run(
            [v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()]
        )
        return session.run(found)


def evaluate(head: Any, logits: Any, labels: Any, features: Any = None) -> dict[str, float]:
    """Metrics over one batch."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        spec = head.create_estimator_spec(features or {}, "eval", tf.constant(logits), labels())
        session.run(
            [v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()]
        )
        session.run([update for _, update in spec.eval_metric_ops.values()])
        return {
            name: float(value)
            for name, value in session.run({n: v for n, (v, _) in spec.eval_metric_ops.items()}).items()
        }


def test_several_labels_as_rows_numbers_or_names() -> None:
    rows = np.array([[1, 0, 1], [0, 1, 0]])
    numbers = tf.compat.v1.SparseTensorValue([[0, 0], [0, 1], [1, 0]], [0, 2, 1], [2, 2])
    names = tf.compat.v1.SparseTensorValue([[0, 0], [0, 1], [1, 0]], [b"a", b"c", b"b"], [2, 2])
    plain = pt.MultiLabelHead(3)
    named = pt.MultiLabelHead(3, label_vocabulary=["a", "b", "c"])
    losses = [
        run(lambda: plain.loss(tf.constant(rows), tf.constant(LOGITS))),
        run(lambda: plain.loss(tf.SparseTensor.from_value(numbers), tf.constant(LOGITS))),
        run(lambda: named.loss(tf.SparseTensor.from_value(names), tf.constant(LOGITS))),
    ]
    probability = sigmoid(LOGITS)
    expected = -np.mean(rows * np.log(probability) + (1 - rows) * np.log(1 - probability))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum_over_batch_size", (2 * 4 + 1 * 9) / 2), ("sum", 2 * 4 + 1 * 9), ("auto", (2 * 4 + 1 * 9) / 2)],
)
def test_weights_and_reductions(reduction: str, expected: float) -> None:
    head = pt.RegressionHead(weight_column="w", loss_reduction=reduction)
    loss = run(
        lambda: head.loss(
            tf.constant([1.0, 2.0]), tf.constant([[3.0], [5.0]]), {"w": tf.constant([2.0, 1.0])}
        )
    )
    assert loss == pytest.approx(expected)


def test_a_weight_for_every_output_and_a_column_that_changes_it() -> None:
    column = tf.feature_column.numeric_column("w", normalizer_fn=lambda w: w / 2)
    head = pt.RegressionHead(2, weight_column=column, loss_reduction="sum")
    assert run(
        lambda: head.loss(
            tf.constant([[0.0, 0.0]]), tf.constant([[1.0, 3.0]]), {"w": tf.constant([[2.0, 4.0]])}
        )
    ) == (pytest.approx(1 * 1 + 2 * 9))


def test_binary_metrics() -> None:
    logits = np.array([[2.0], [-1.0], [0.5], [-3.0]], np.float32)
    labels = np.array([1, 0, 0, 1])
    found = evaluate(pt.BinaryClassHead(thresholds=[0.9], name="h"), logits, lambda: tf.constant(labels))
    assert found["accuracy/h"] == 0.5
    assert found["precision/h"] == 0.5
    assert found["recall/h"] == 0.5
    assert found["label/mean/h"] == 0.5
    assert found["accuracy_baseline/h"] == 0.5
    assert found["prediction/mean/h"] == pytest.approx(float(np.mean(sigmoid(logits))))
    assert found["auc/h"] == pytest.approx(0.5, abs=0.01)
    assert found["accuracy/positive_threshold_0.9/h"] == 0.5


def test_regularization_is_added_and_reported() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        losses = [tf.constant(2.0), tf.constant(3.0)]
        spec = pt.RegressionHead().create_estimator_spec(
            {}, "eval", tf.constant([[1.0]]), tf.constant([1.0]), regularization_losses=losses
        )
        session.run(v1.local_variables_initializer())
        session.run([update for _, update in spec.eval_metric_ops.values()])
        assert session.run([spec.loss, spec.eval_metric_ops["regularization_loss"][0]]) == [5.0, 5.0]


def test_loss_fn_of_the_user() -> None:
    def loss_fn(labels: Any, logits: Any, features: Any) -> Any:
        return tf.abs(labels - logits) * features["scale"]

    head = pt.RegressionHead(loss_fn=loss_fn)
    assert (
        run(lambda: head.loss(tf.constant([1.0]), tf.constant([[4.0]]), {"scale": tf.constant(2.0)})) == 6.0
    )
    wrong = pt.RegressionHead(loss_fn=lambda labels, logits: tf.reduce_sum(logits, keepdims=True)[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape of the logits"):
        run(lambda: wrong.loss(tf.constant([1.0, 2.0]), tf.constant([[4.0], [5.0]])))


def test_labels_out_of_range_are_found_when_they_come() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be <= 3 - 1"):
        run(lambda: pt.MultiClassHead(3).loss(tf.constant([3, 0]), tf.constant(LOGITS)))
    head = pt.MultiClassHead(3, label_vocabulary=["a", "b", "c"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be >= 0"):
        run(lambda: head.loss(tf.constant(["a", "unknown"]), tf.constant(LOGITS)))


class MyHead(pt.Head):
    """As a user writes one: only what is abstract."""

    name = "mine"
    logits_dimension = 1
    loss_reduction = "sum_over_batch_size"

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: Any = None,
        regularization_losses: Any = None,
    ) -> Any:
        return tf.reduce_mean(tf.abs(logits - tf.reshape(labels, tf.shape(logits))))

    def predictions(self, logits: Any, keys: Any = None) -> Any:
        return {"value": logits}

    def metrics(self, regularization_losses: Any = None) -> Any:
        return {"mean": tf.keras.metrics.Mean()}

    def update_metrics(
        self,
        eval_metrics: Any,
        features: Any,
        logits: Any,
        labels: Any,
        mode: Any = None,
        regularization_losses: Any = None,
    ) -> Any:
        eval_metrics["mean"].update_state(logits)
        return eval_metrics


def _input_fn() -> Any:
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    return tf.data.Dataset.from_tensors(({"x": x}, 2 * x)).repeat(10)


def test_a_head_of_the_user_and_one_optimizer_for_two_trainings(tmp_path: Path) -> None:
    columns = [tf.feature_column.numeric_column("x")]
    optimizer = tf.keras.optimizers.legacy.SGD(0.1, momentum=0.5)
    config = pt.RunConfig(log_step_count_steps=None)
    estimator = pt.DNNEstimator(MyHead(), [4], columns, str(tmp_path), optimizer, dropout=0.1, config=config)
    estimator.train(_input_fn, steps=4)
    estimator.train(_input_fn, steps=4)  # the optimizer's variables were in another graph
    assert estimator.get_variable_value("global_step") == 8
    found = estimator.evaluate(_input_fn, steps=1)
    assert set(found) == {"mean", "loss", "global_step"}
    assert set(next(iter(estimator.predict(_input_fn)))) == {"value"}


def test_warm_start_of_a_canned_estimator(tmp_path: Path) -> None:
    columns = [tf.feature_column.numeric_column("x")]
    config = pt.RunConfig(log_step_count_steps=None)
    first = pt.LinearRegressor(columns, str(tmp_path / "a"), config=config)
    first.train(_input_fn, steps=5)
    second = pt.LinearRegressor(
        columns, str(tmp_path / "b"), config=config, warm_start_from=str(tmp_path / "a")
    )
    metrics = first.evaluate(_input_fn, steps=1)
    assert second.evaluate(_input_fn, steps=1)["loss"] == pytest.approx(metrics["loss"])


NUMERIC = [tf.feature_column.numeric_column("x")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pt.MultiClassHead(2), "n_classes is 2"),
        (lambda: pt.MultiClassHead(3, label_vocabulary=["a"]), "has 1 names, for 3 classes"),
        (lambda: pt.MultiClassHead(3, label_vocabulary="abc"), "label_vocabulary is a str"),
        (lambda: pt.BinaryClassHead(thresholds=[0.0]), "threshold is 0.0"),
        (lambda: pt.BinaryClassHead(loss_reduction="mean"), "loss_reduction is 'mean'"),
        (lambda: pt.BinaryClassHead(loss_reduction="none"), "loss_reduction is 'none'"),
        (lambda: pt.BinaryClassHead(loss_fn=lambda logits: logits), "loss_fn takes logits"),
        (lambda: pt.RegressionHead(0), "label_dimension is 0"),
        (lambda: pt.MultiLabelHead(1), "n_classes is 1"),
        (lambda: pt.MultiLabelHead(3, classes_for_class_based_metrics=[3]), "has 3"),
        (
            lambda: pt.MultiLabelHead(
                2, label_vocabulary=["cat", "dog"], classes_for_class_based_metrics=["ct"]
            ),
            "Did you mean 'cat'",
        ),
        (lambda: pt.MultiHead([]), "heads is"),
        (lambda: pt.MultiHead([pt.RegressionHead()]), "heads are named"),
        (lambda: pt.MultiHead([pt.RegressionHead(name="a")], [1, 2]), "1 heads and 2 weights"),
        (lambda: pt.MultiClassHead(3).predictions(tf.ones([2, 4])), r"logits have shape \(2, 4\)"),
        (lambda: pt.MultiClassHead(3).predictions(tf.ones([2, 3]), ["probs"]), "no prediction 'probs'"),
        (lambda: pt.RegressionHead().loss(None, tf.ones([2, 1])), "no labels"),
        (lambda: pt.RegressionHead().loss(tf.ones([2, 3]), tf.ones([2, 1])), r"labels have shape \(2, 3\)"),
        (lambda: pt.MultiClassHead(3).loss(tf.ones([2]), tf.ones([2, 3])), "labels are float32"),
        (
            lambda: pt.RegressionHead(weight_column="w").loss(tf.ones([2]), tf.ones([2, 1]), {"x": 1}),
            "no weight column 'w'",
        ),
        (
            lambda: pt.RegressionHead(weight_column=3).loss(tf.ones([2]), tf.ones([2, 1]), {}),
            "weight_column is a int",
        ),
        (
            lambda: pt.RegressionHead().create_estimator_spec({}, "train", tf.ones([2, 1]), tf.ones([2])),
            "Neither optimizer",
        ),
        (
            lambda: pt.RegressionHead().create_estimator_spec({}, "test", tf.ones([2, 1]), tf.ones([2])),
            "mode is 'test'",
        ),
        (lambda: pt.DNNClassifier([2], []), "feature_columns is"),
        (lambda: pt.DNNEstimator(3, [2], NUMERIC), "head is a int"),
        (lambda: pt.DNNLinearCombinedClassifier(), "linear_feature_columns and dnn_feature_columns is"),
        (lambda: pt.DNNLinearCombinedClassifier(dnn_feature_columns=NUMERIC), "dnn_hidden_units is None"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("Adamm", "Did you mean 'Adam'"),
        (v1.train.AdamOptimizer(), r"optimizer is a AdamOptimizer.*canned.v1"),
        (3, "is a int"),
    ],
)
def test_bad_optimizers(optimizer: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pt.DNNRegressor([2], NUMERIC, str(tmp_path), optimizer=optimizer).train(_input_fn, steps=1)


def test_features_that_are_no_dict(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="features are a"):
        pt.LinearRegressor(NUMERIC, str(tmp_path)).train(
            lambda: tf.data.Dataset.from_tensors((np.ones(2), np.ones(2))), steps=1
        )


def test_logit_functions() -> None:
    features = {"x": tf.constant([[1.0], [2.0]])}
    calls = pt.experimental.call_logit_fn(lambda features, mode: features["x"], features, "train", {}, None)
    assert calls is features["x"]
    with pytest.raises(UserError, match="logit_fn gave a int"):
        pt.experimental.call_logit_fn(lambda features: 3, features, "train", {}, None)
    with tf.Graph().as_default():
        inputs = {"x": tf.ones([2, 1])}
        dnn = pt.experimental.dnn_logit_fn_builder(3, [4], NUMERIC, tf.nn.relu, None, None, False)
        linear = pt.experimental.linear_logit_fn_builder(3, NUMERIC)
        assert dnn(inputs, "train").shape.as_list() == linear(inputs).shape.as_list() == [2, 3]
        names = [variable.name for variable in v1.global_variables()]
        assert "hiddenlayer_0/kernel:0" in names
        assert "linear_model/x/weights:0" in names
    with pytest.raises(UserError, match="units is 'a'"):
        pt.experimental.dnn_logit_fn_builder("a", [4], NUMERIC, tf.nn.relu, None, None, False)


def test_several_heads_are_summarized_by_name(tmp_path: Path) -> None:
    def two_labels() -> Any:
        x = np.linspace(-1, 1, 8, dtype=np.float32)
        return tf.data.Dataset.from_tensors(({"x": x}, {"a": 2 * x, "b": x})).repeat(3)

    head = pt.MultiHead([pt.RegressionHead(name="a"), pt.RegressionHead(name="b")])
    config = pt.RunConfig(save_summary_steps=1, log_step_count_steps=None)
    pt.LinearEstimator(head, NUMERIC, str(tmp_path), config=config).train(two_labels)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    found = [
        {v.tag: v.simple_value for v in event.summary.value}
        for event in v1.train.summary_iterator(str(events))
    ]
    first = next(values for values in found if "loss" in values)
    assert first["loss"] == pytest.approx(first["loss/a"] + first["loss/b"])
    with pytest.raises(UserError, match="There are no labels for b"):
        run(lambda: head.loss({"a": tf.ones([2])}, tf.ones([2, 2])))
    with pytest.raises(UserError, match="labels are a"):
        run(lambda: head.loss(tf.ones([2]), tf.ones([2, 2])))
    with pytest.raises(UserError, match="heads need 2: a 1, b 1"):
        run(lambda: head.predictions(tf.ones([2, 3])))
