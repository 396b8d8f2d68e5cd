"""Canned estimators on tiny data with given weights: run by the real tf.estimator to write goldens, and by ours to meet them.

Nothing here imports portwright, so that the environment of TensorFlow 2.15 can run it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
STEPS = 6
ROWS = 12
FEATURES = ("age", "pos", "city", "w")


def _raw() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        "age": rng.uniform(18, 80, (ROWS, 1)).astype(np.float32),
        "pos": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "city": np.array(["ny", "sf", "la", "xx"] * 3, dtype="S"),
        "w": rng.uniform(0.5, 2.0, (ROWS, 1)).astype(np.float32),
        "binary": (np.arange(ROWS) % 3 == 0).astype(np.int64),
        "class": (np.arange(ROWS) % 4).astype(np.int64),
        "name": np.array(["a", "b", "c"] * 4, dtype="S"),
        "value": rng.normal(size=(ROWS, 1)).astype(np.float32) * 2 + 1,
        "two": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "many": (rng.uniform(size=(ROWS, 3)) > 0.5).astype(np.int64),
        "count": rng.integers(0, 5, (ROWS, 1)).astype(np.float32),
    }


def make_input_fn(
    label: str | dict[str, str] | None, names: tuple[str, ...], batch: int = 4, repeat: bool = True
) -> Callable[[], Any]:
    raw = _raw()
    features = {name: raw[name] for name in names}
    if label is None:
        return lambda: tf.data.Dataset.from_tensor_slices(features).batch(batch)
    labels = {head: raw[name] for head, name in label.items()} if isinstance(label, dict) else raw[label]

    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensor_slices((features, labels))
        return (data.repeat() if repeat else data).batch(batch)

    return input_fn


def columns(fc: Any) -> tuple[list[Any], list[Any]]:
    """Dense ones for a DNN, and ones for a linear model."""
    age, pos = fc.numeric_column("age"), fc.numeric_column("pos", shape=(3,))
    city = fc.categorical_column_with_vocabulary_list("city", ["ny", "sf", "la"], num_oov_buckets=1)
    buckets = fc.bucketized_column(age, [30.0, 50.0])
    crossed = fc.crossed_column([buckets, "city"], 7)
    dense = [age, pos, fc.embedding_column(city, 2), fc.indicator_column(city)]
    return dense, [pos, city, buckets, crossed]


def cases(est: Any, is_v1: bool) -> dict[str, tuple[Any, Any]]:
    """Case: (estimator from its model_dir and config, label)."""
    fc = v1.feature_column if is_v1 else tf.feature_column
    dense, linear = columns(fc)
    hidden = [5, 3]

    def adam() -> Any:
        return v1.train.AdamOptimizer(0.01) if is_v1 else tf.keras.optimizers.legacy.Adam(0.01)

    found: dict[str, tuple[Any, Any]] = {
        "dnn_binary": (lambda **kw: est.DNNClassifier(hidden, dense, **kw), "binary"),
        "dnn_binary_weighted_bn": (
            lambda **kw: est.DNNClassifier(
                hidden, dense, weight_column="w", batch_norm=True, optimizer=adam, **kw
            ),
            "binary",
        ),
        "dnn_classes": (lambda **kw: est.DNNClassifier(hidden, dense, n_classes=4, **kw), "class"),
        "dnn_vocabulary": (
            lambda **kw: est.DNNClassifier(
                hidden, dense, n_classes=3, label_vocabulary=["a", "b", "c"], optimizer="RMSProp", **kw
            ),
            "name",
        ),
        "dnn_regressor": (lambda **kw: est.DNNRegressor(hidden, dense, activation_fn=tf.tanh, **kw), "value"),
        "dnn_regressor_2": (
            lambda **kw: est.DNNRegressor(
                hidden, dense, label_dimension=2, weight_column="w", optimizer="SGD", **kw
            ),
            "two",
        ),
        "linear_binary": (lambda **kw: est.LinearClassifier(linear, **kw), "binary"),
        "linear_classes": (
            lambda **kw: est.LinearClassifier(
                linear, n_classes=4, weight_column="w", sparse_combiner="mean", **kw
            ),
            "class",
        ),
        "linear_regressor": (lambda **kw: est.LinearRegressor(linear, optimizer="Adam", **kw), "value"),
        "combined_binary": (
            lambda **kw: est.DNNLinearCombinedClassifier(
                linear_feature_columns=linear, dnn_feature_columns=dense, dnn_hidden_units=hidden, **kw
            ),
            "binary",
        ),
        "combined_regressor": (
            lambda **kw: est.DNNLinearCombinedRegressor(
                linear_feature_columns=linear,
                dnn_feature_columns=dense,
                dnn_hidden_units=hidden,
                dnn_optimizer="SGD",
                linear_optimizer="Adagrad",
                **kw,
            ),
            "value",
        ),
        "combined_dnn_only": (
            lambda **kw: est.DNNLinearCombinedClassifier(
                dnn_feature_columns=dense, dnn_hidden_units=hidden, **kw
            ),
            "binary",
        ),
        "combined_linear_only": (
            lambda **kw: est.DNNLinearCombinedClassifier(linear_feature_columns=linear, **kw),
            "binary",
        ),
        "baseline_binary": (lambda **kw: est.BaselineClassifier(**kw), "binary"),
        "baseline_classes": (
            lambda **kw: est.BaselineClassifier(n_classes=4, weight_column="w", **kw),
            "class",
        ),
        "baseline_regressor": (lambda **kw: est.BaselineRegressor(**kw), "value"),
    }
    if is_v1:
        return found
    multi_head = lambda: est.MultiHead(  # noqa: E731
        [est.BinaryClassHead(name="is"), est.RegressionHead(label_dimension=2, name="at")],
        head_weights=[1.0, 0.5],
    )
    found |= {
        "head_multi_label": (
            lambda **kw: est.DNNEstimator(
                est.MultiLabelHead(
                    3, thresholds=[0.4], classes_for_class_based_metrics=[0, 2], weight_column="w"
                ),
                hidden,
                dense,
                **kw,
            ),
            "many",
        ),
        "head_thresholds": (
            lambda **kw: est.LinearEstimator(
                est.BinaryClassHead(
                    thresholds=[0.3, 0.7], weight_column="w", loss_reduction="sum", name="mine"
                ),
                linear,
                **kw,
            ),
            "binary",
        ),
        "head_poisson": (
            lambda **kw: est.DNNEstimator(est.PoissonRegressionHead(), hidden, dense, **kw),
            "count",
        ),
        "head_logistic": (
            lambda **kw: est.LinearEstimator(est.LogisticRegressionHead(), linear, **kw),
            "binary",
        ),
        "head_multi": (
            lambda **kw: est.DNNEstimator(multi_head(), hidden, dense, **kw),
            {"is": "binary", "at": "two"},
        ),
        "head_baseline": (lambda **kw: est.BaselineEstimator(est.MultiClassHead(4), **kw), "class"),
        "head_combined": (
            lambda **kw: est.DNNLinearCombinedEstimator(
                est.RegressionHead(),
                linear_feature_columns=linear,
                dnn_feature_columns=dense,
                dnn_hidden_units=hidden,
                **kw,
            ),
            "value",
        ),
    }
    return found


class Fill(v1.train.SessionRunHook):
    """Gives every trainable variable a value that its name decides."""

    def begin(self) -> None:
        self._fills = [v1.assign(variable, _value_for(variable)) for variable in v1.trainable_variables()]

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._fills)


def _value_for(variable: Any) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(variable.name.split(":")[0].encode()))
    return (rng.normal(size=variable.shape.as_list()) * 0.3).astype(np.float32)


class Losses(v1.train.SessionRunHook):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def begin(self) -> None:
        losses = v1.get_collection(v1.GraphKeys.LOSSES)
        self._loss = losses[-1]

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(float(run_values.results))


def run_case(est: Any, is_v1: bool, name: str, model_dir: str) -> dict[str, Any]:
    make, label = cases(est, is_v1)[name]
    config = est.RunConfig(tf_random_seed=1, save_summary_steps=1000, log_step_count_steps=None)
    estimator = make(model_dir=model_dir, config=config)
    losses = Losses()
    # With more than one feature the real baseline asks a dataset for sizes before it has started.
    names = ("age", "w") if name == "baseline_classes" else ("age",) if "baseline" in name else FEATURES
    estimator.train(make_input_fn(label, names), hooks=[Fill(), losses], steps=STEPS)
    reader = tf.train.load_checkpoint(model_dir)
    shapes = reader.get_variable_to_shape_map()
    sums = {key: _sum(reader.get_tensor(key)) for key in sorted(shapes)}
    metrics = estimator.evaluate(make_input_fn(label, names, repeat=False), steps=None)
    first = next(iter(estimator.predict(make_input_fn(None, names))))
    return {
        "losses": losses.seen,
        "variables": {key: shapes[key] for key in sorted(shapes)},
        "sums": sums,
        "metrics": {key: float(value) for key, value in sorted(metrics.items())},
        "predictions": {
            _key(key): _plain(value) for key, value in sorted(first.items(), key=lambda kv: _key(kv[0]))
        },
    }


def _key(key: Any) -> str:
    return "/".join(key) if isinstance(key, tuple) else key


def _sum(value: np.ndarray) -> float:
    total = float(np.sum(np.asarray(value, np.float64)))
    return total if math.isfinite(total) else 0.0


def _plain(value: Any) -> list[Any]:
    flat = np.asarray(value).reshape(-1).tolist()
    return [item.decode() if isinstance(item, bytes) else item for item in flat]
