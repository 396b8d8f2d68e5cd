"""A pipeline without a prefetch is read ahead when asked for, and nothing else about a training changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow import Estimator, EstimatorSpec, RunConfig
from portwright.tensorflow.input_feed import make_feed, needs_prefetch

v1 = tf.compat.v1
X = np.random.RandomState(0).randn(23, 4).astype(np.float32)


def late() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(X).shuffle(7).repeat().batch(4)


def python() -> tf.data.Dataset:
    return late().map(lambda x: tf.numpy_function(np.negative, [x], tf.float32))


def with_options() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return late().prefetch(1).with_options(options)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (late, True),
        (lambda: late().prefetch(3), False),
        (with_options, False),
        (lambda: late().prefetch(3).map(tf.negative), True),
        (python, False),
        (lambda: tf.data.Dataset.zip((late(), python())), False),
    ],
)
def test_which_pipelines_are_read_ahead(make: Any, expected: bool) -> None:
    with tf.Graph().as_default():
        assert needs_prefetch(make()) is expected


def started_over(feed: Any) -> str:
    for hook in feed.hooks:
        hook.begin()
    return str(feed.hooks[0]._initializer.inputs[0].op.type)


def test_iterator_starts_over_prefetch_only_once_graph_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_TF_PREFETCH", "1")
    with tf.Graph().as_default() as graph:
        feed = make_feed(late())
        assert not [op for op in graph.get_operations() if op.type.startswith("Prefetch")]
        assert started_over(feed).startswith("Prefetch")
    monkeypatch.delenv("PORTWRIGHT_TF_PREFETCH")
    with tf.Graph().as_default():
        assert started_over(make_feed(late())).startswith("Batch")


def test_switch_that_is_neither_on_nor_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_TF_PREFETCH", "no")
    with tf.Graph().as_default(), pytest.raises(UserError, match="'no'"):
        make_feed(late())


def model_fn(features: Any, mode: str) -> EstimatorSpec:
    hidden = tf.nn.dropout(tf.matmul(features, v1.get_variable("w", [4, 3])), rate=0.3)
    loss = tf.reduce_mean(tf.square(hidden - 1))
    train_op = v1.train.AdamOptimizer(0.05).minimize(loss, global_step=v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


class Losses(v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, fails: bool) -> None:
        self.values: list[float] = []
        self._fails = fails

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(v1.get_collection(v1.GraphKeys.LOSSES)[0])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(float(run_values.results))
        if len(self.values) == 9 and self._fails:
            raise KeyError("cut")


def train(folder: Path, fails: bool = False) -> list[float]:
    hook = Losses(fails)
    estimator = Estimator(model_fn, config=RunConfig(str(folder), 7, save_checkpoints_steps=4))
    if not fails:
        estimator.train(late, hooks=[hook], max_steps=20)
    else:
        with pytest.raises(KeyError, match="cut"):
            estimator.train(late, hooks=[hook], max_steps=20)
    return hook.values


@pytest.mark.parametrize(("first", "then"), [("1", "1"), ("0", "1"), ("1", "0")])
def test_losses_are_those_without_it_also_across_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    monkeypatch.setenv("PORTWRIGHT_TF_PREFETCH", "0")
    expected = train(tmp_path / "whole")
    monkeypatch.setenv("PORTWRIGHT_TF_PREFETCH", first)
    assert train(tmp_path / "cut", fails=True) == expected[:9]
    monkeypatch.setenv("PORTWRIGHT_TF_PREFETCH", then)
    assert train(tmp_path / "cut") == expected[8:]
