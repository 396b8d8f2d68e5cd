"""Input functions over arrays, added metrics, and the specs that parse examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as pt
from portwright.errors import UserError
from portwright.tensorflow import inputs

v1 = tf.compat.v1


def read(input_fn: Any, most: int = 20) -> list[Any]:
    """The batches, until they end."""
    found: list[Any] = []
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        batch = input_fn()
        with v1.train.MonitoredSession() as session:
            while not session.should_stop() and len(found) < most:
                found.append(session.run(batch))
    return found


def test_batches_run_over_the_end_of_an_epoch() -> None:
    x, y = {"a": np.arange(5), "b": np.arange(10).reshape(5, 2)}, np.arange(5) * 10
    batches = read(pt.inputs.numpy_input_fn(x, y, batch_size=4, num_epochs=2, shuffle=False))
    assert [batch[0]["a"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    assert [batch[1].tolist() for batch in batches] == [[0, 10, 20, 30], [40, 0, 10, 20], [30, 40]]
    assert batches[0][0]["b"].shape == (4, 2)


def test_without_epochs_it_goes_on_and_on() -> None:
    assert len(read(inputs.numpy_input_fn(np.arange(3), batch_size=2, num_epochs=None, shuffle=False))) == 20


def test_shuffled_epochs_hold_every_row_once() -> None:
    batches = read(inputs.numpy_input_fn(np.arange(100), batch_size=100, num_epochs=2, shuffle=True))
    assert [sorted(batch.tolist()) for batch in batches] == [list(range(100))] * 2
    assert batches[0].tolist() != batches[1].tolist()
    assert batches[0].tolist() != list(range(100))


def test_large_arrays_stay_out_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_MOST_BYTES_IN_GRAPH", 10)
    x, y = {"a": np.arange(5.0), "s": np.array(["p", "q", "r", "s", "ü"])}, {"y": np.arange(5)}
    with tf.Graph().as_default() as graph:
        inputs.numpy_input_fn(x, y, batch_size=2, shuffle=False)()
        assert len(graph.as_graph_def().SerializeToString()) < 10_000
    batches = read(inputs.numpy_input_fn(x, y, batch_size=2, shuffle=False))
    assert [batch[0]["a"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[-1][0]["s"].tolist() == ["ü".encode()]
    assert batches[-1][1]["y"].tolist() == [4]


def test_trains_an_estimator(tmp_path: Path) -> None:
    x = {"age": np.linspace(0, 1, 12, dtype=np.float32)}
    y = np.linspace(0, 2, 12, dtype=np.float32)
    config = pt.RunConfig(log_step_count_steps=None)
    model = pt.LinearRegressor([tf.feature_column.numeric_column("age")], str(tmp_path), config=config)
    model.train(inputs.numpy_input_fn(x, y, batch_size=4, num_epochs=None, shuffle=True), steps=5)
    evaluated = model.evaluate(inputs.numpy_input_fn(x, y, batch_size=5, shuffle=False))
    assert evaluated["label/mean"] == pytest.approx(1.0)
    assert len(list(model.predict(inputs.numpy_input_fn(x, batch_size=5, shuffle=False)))) == 12

    def metric_fn(labels: Any, predictions: Any) -> Any:
        return {"mae": v1.metrics.mean_absolute_error(labels, tf.squeeze(predictions["predictions"], -1))}

    more = pt.add_metrics(model, metric_fn).evaluate(inputs.numpy_input_fn(x, y, batch_size=5, shuffle=False))
    assert {key: more[key] for key in evaluated} == evaluated
    assert more["mae"] > 0


class Frame:
    """As much of a DataFrame as the input function reads; pandas is not in this environment."""

    def __init__(self, columns: dict[str, Any], index: Any) -> None:
        self._columns, self.columns, self.index = columns, list(columns), index

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self._columns


def test_data_frames() -> None:
    frame = Frame({"a": np.arange(3), "s": np.array(["x", b"y", "z"], dtype=object)}, np.arange(3))
    series = Frame({"t": np.arange(3) * 2}, np.arange(3))
    batches = read(inputs.pandas_input_fn(frame, series, batch_size=2, shuffle=False))
    assert [batch[0]["s"].tolist() for batch in batches] == [[b"x", b"y"], [b"z"]]
    assert [batch[1]["t"].tolist() for batch in batches] == [[0, 2], [4]]
    with pytest.raises(UserError, match="index of x"):
        inputs.pandas_input_fn(frame, Frame({"t": np.arange(3)}, np.arange(1, 4)), shuffle=False)
    with pytest.raises(UserError, match="name of the target"):
        inputs.pandas_input_fn(frame, series, shuffle=False, target_column="a")
    with pytest.raises(UserError, match="x is a list"):
        inputs.pandas_input_fn([1], shuffle=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inputs.numpy_input_fn(np.arange(3)), "shuffle is None"),
        (lambda: inputs.numpy_input_fn({}, shuffle=False), "x is an empty dict"),
        (lambda: inputs.numpy_input_fn([1, 2], shuffle=False), "x is a list"),
        (lambda: inputs.numpy_input_fn(np.array(3), shuffle=False), "single number"),
        (lambda: inputs.numpy_input_fn(np.arange(3), np.arange(4), shuffle=False), "different lengths"),
        (lambda: inputs.numpy_input_fn(np.arange(3), batch_size=0, shuffle=False), "batch_size is 0"),
        (lambda: inputs.numpy_input_fn(np.arange(3), num_epochs=0, shuffle=False), "num_epochs is 0"),
        (lambda: pt.add_metrics(3, lambda: {}), "estimator is a int"),
        (lambda: pt.classifier_parse_example_spec([], "y"), "feature_columns is"),
        (
            lambda: pt.classifier_parse_example_spec([tf.feature_column.numeric_column("y")], "y"),
            "also a feature",
        ),
        (
            lambda: pt.classifier_parse_example_spec([tf.feature_column.numeric_column("a")], ""),
            "label_key is ''",
        ),
        (
            lambda: pt.regressor_parse_example_spec(
                [tf.feature_column.numeric_column("a")], "y", weight_column="y"
            ),
            "also a feature or the label",
        ),
        (
            lambda: pt.regressor_parse_example_spec(
                [tf.feature_column.numeric_column("a")], "y", weight_column=3
            ),
            "weight_column is a int",
        ),
        (lambda: pt.CheckpointInputPipelineHook(None, "sometimes"), "external_state_policy is 'sometimes'"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_metric_fn_with_unknown_arguments(tmp_path: Path) -> None:
    estimator = pt.BaselineRegressor(str(tmp_path))
    with pytest.raises(UserError, match="metric_fn takes logits"):
        pt.add_metrics(estimator, lambda logits: {})


def test_specs_that_parse_examples() -> None:
    column = tf.feature_column.numeric_column("a", shape=(2,))
    assert pt.classifier_parse_example_spec([column], "y", weight_column="w") == {
        "a": tf.io.FixedLenFeature((2,), tf.float32),
        "y": tf.io.FixedLenFeature((1,), tf.int64),
        "w": tf.io.FixedLenFeature((1,), tf.float32),
    }
    assert pt.regressor_parse_example_spec([column], "y", label_dimension=3, label_default=(0.0,) * 3)[
        "y"
    ] == (tf.io.FixedLenFeature((3,), tf.float32, (0.0,) * 3))


def test_a_second_training_starts_its_data_anew_unless_a_hook_asks_otherwise(tmp_path: Path) -> None:
    x = {"age": np.random.default_rng(0).normal(size=40).astype(np.float32)}
    y = (x["age"] * 3).astype(np.float32)
    read_all = inputs.numpy_input_fn(x, y, batch_size=4, num_epochs=None, shuffle=True)

    def train(name: str, stretches: list[int], with_hook: bool) -> Any:
        config = pt.RunConfig(tf_random_seed=3, log_step_count_steps=None)
        for steps in stretches:
            model = pt.LinearRegressor(
                [tf.feature_column.numeric_column("age")], str(tmp_path / name), config=config
            )
            hooks = [pt.CheckpointInputPipelineHook(model)] if with_hook else []
            model.train(read_all, hooks=hooks, steps=steps)
        return model.get_variable_value("linear/linear_model/age/weights").tolist()

    whole = train("whole", [10], with_hook=False)
    assert train("hook", [4, 6], with_hook=True) == whole
    assert train("anew", [4, 6], with_hook=False) != whole
