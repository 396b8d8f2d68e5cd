"""Averaging among processes, with the other one played: its values are three times this one's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import backprop
from tensorflow.python.ops import gradients_util

from portwright.errors import UnsupportedError, UserError
from portwright.tensorflow.cluster import place_of
from portwright.tensorflow.estimator_setup import check_strategy
from portwright.tensorflow.peer_watch import ConnectionBroken, PeerWatch, answers, watching_peers
from portwright.tensorflow.processes import ENDED, Processes, find_processes, is_end_of_data
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.train_hooks import may_stop
from portwright.tensorflow.train_loop import with_shared_statistics

v1 = tf.compat.v1
TASKS = [("chief", 0, "127.0.0.1:1"), ("worker", 0, "127.0.0.1:2")]


class Played(Processes):
    """A chief whose worker has three times its values; the mean of both is twice a value."""

    def _start_server(self) -> None:
        self.reduced: list[Any] = []

    @property
    def device(self) -> str:
        return ""

    def _reduce(self, tensor: Any, operation: str) -> Any:
        self.reduced.append(tensor)
        return tensor * 4 if operation == "Add" else tf.minimum(tensor, tensor * 3)


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def values(tensors: Any) -> Any:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(tensors)


def test_means_keep_order_shape_and_type(graph: Any) -> None:
    processes = Played(TASKS, 0)
    rows = tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([0, 0]), dense_shape=tf.constant([2, 2])
    )
    given = [tf.constant([[1.0, 2.0]]), None, tf.constant(5.0, tf.float64), rows, tf.constant(3.0)]
    means = processes.mean_all(given)
    assert means[1] is None
    assert [m.dtype for m in means if m is not None] == [tf.float32, tf.float64, tf.float32, tf.float32]
    assert means[0].shape == [1, 2]
    assert len(processes.reduced) == 2, "one for each type"
    found = values([m for m in means if m is not None])
    for got, expected in zip(found, ([[2.0, 4.0]], 10.0, [[8.0, 12.0], [0.0, 0.0]], 6.0), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_means_of_nothing(graph: Any) -> None:
    assert Played(TASKS, 0).mean_all([None, None]) == [None, None]
    assert Played(TASKS, 0).mean_all([]) == []


@pytest.mark.parametrize("kind", ["gradients", "optimizer", "keras", "tape", "ref"])
def test_gradients_of_weights_are_averaged(graph: Any, kind: str) -> None:
    processes = Played(TASKS, 0)
    weight = v1.get_variable("w", initializer=tf.constant(3.0), use_resource=kind != "ref")
    with processes.averaging():
        if kind == "tape":
            with tf.GradientTape() as tape:
                loss = weight * weight
            gradient = tape.gradient(loss, {"w": weight})["w"]
        elif kind == "optimizer":
            gradient = v1.train.GradientDescentOptimizer(1.0).compute_gradients(weight * weight)[0][0]
        elif kind == "keras":
            gradient = tf.keras.optimizers.legacy.SGD(1.0).get_gradients(weight * weight, [weight])[0]
        else:
            gradient = tf.gradients(weight * weight, weight)[0]
    assert values(gradient) == 12.0
    assert len(processes.reduced) == 1


def test_gradients_of_anything_else_are_not(graph: Any) -> None:
    processes = Played(TASKS, 0)
    weight = v1.get_variable("w", initializer=tf.constant(3.0))
    inner = weight * 2.0
    with processes.averaging():
        gradient = tf.gradients(inner * inner, inner)[0]  # such as of a gradient penalty
    assert values(gradient) == 12.0
    assert not processes.reduced


def test_averaging_ends_with_its_block(graph: Any) -> None:
    plain, of_tape = gradients_util._GradientsHelper, backprop.GradientTape.gradient
    with Played(TASKS, 0).averaging():
        assert gradients_util._GradientsHelper is not plain
    with pytest.raises(RuntimeError), Played(TASKS, 0).averaging():
        raise RuntimeError
    assert gradients_util._GradientsHelper is plain
    assert backprop.GradientTape.gradient is of_tape


def test_data_end_for_all(graph: Any) -> None:
    class Ended(Played):
        def _reduce(self, tensor: Any, operation: str) -> Any:
            return tf.minimum(tensor, 0)  # the other one has none

    iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3))
    batch, last = Played(TASKS, 0).next_batch(iterator), Ended(TASKS, 0).next_batch(iterator)
    with v1.Session() as session:
        assert session.run(batch) == 0
        with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED) as caught:
            session.run(last)
    assert is_end_of_data(caught.value)


def test_statistics_become_means(graph: Any) -> None:
    batch = tf.keras.layers.BatchNormalization(name="norm", momentum=0.0)
    batch(tf.constant([[1.0], [3.0]]), training=True)
    other = v1.get_variable("other", initializer=tf.constant(1.0), trainable=False)
    step = with_shared_statistics(tf.group(*batch.updates), Played(TASKS, 0))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(batch.moving_mean) == [4.0]
        assert session.run(other) == 1.0


def test_a_step_without_statistics_stays(graph: Any) -> None:
    v1.get_variable("w", initializer=tf.constant(1.0))
    step = tf.no_op()
    assert with_shared_statistics(step, Played(TASKS, 0)) is step


def test_hooks_that_only_write_need_no_vote() -> None:
    assert may_stop(v1.train.StopAtStepHook(last_step=3))
    assert may_stop(v1.train.SessionRunHook())
    assert not may_stop(v1.train.LoggingTensorHook(["x"], every_n_iter=1))


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"chief": "host:1"}, "'host:1'"),
        ({"chief": ["host"]}, "'host'"),
        ({"chief": ["host:x"]}, "'host:x'"),
        ({"chief": [":1"]}, "':1'"),
        ({"chief": [7]}, "7"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, "a:1 twice"),
    ],
)
def test_addresses_are_checked(cluster: Any, told: str) -> None:
    with pytest.raises(UserError, match="TF_CONFIG") as caught:
        place_of({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    assert told in caught.value.message


@pytest.mark.parametrize("index", ["x", None, [], -1, {}])
def test_an_index_is_a_number(index: Any) -> None:
    with pytest.raises(UserError, match="TF_CONFIG"):
        place_of({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": index}})


def test_what_cannot_train_together_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(UserError, match="tf_random_seed is None"):
        find_processes(RunConfig())
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {**cluster, "ps": ["a:3"]}, "task": task}))
    with pytest.raises(UserError, match="parameter servers"):
        find_processes(RunConfig(tf_random_seed=1))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"chief": ["a:1"]}, "task": task}))
    assert find_processes(RunConfig()) is None
    monkeypatch.delenv("TF_CONFIG")
    assert find_processes(RunConfig()) is None


def test_strategies() -> None:
    check_strategy(tf.distribute.MirroredStrategy(["/cpu:0"]), "train_distribute")
    check_strategy(tf.distribute.MultiWorkerMirroredStrategy(), "train_distribute")
    with pytest.raises(UnsupportedError, match="takes this process's address for itself"):
        check_strategy(tf.distribute.MultiWorkerMirroredStrategy(), "train_distribute", num_workers=2)

    class Several:
        num_replicas_in_sync = 2

    with pytest.raises(UnsupportedError, match="Several of 2 replicas"):
        check_strategy(Several(), "train_distribute", num_workers=2)


def test_a_process_that_is_gone_is_named() -> None:
    closed: list[int] = []

    class Session:
        def close(self) -> None:
            closed.append(1)

    with (
        pytest.raises(UserError, match=r"worker 0 at 127\.0\.0\.1:1 is gone"),
        watching_peers([("worker 0", "127.0.0.1:1")], Session),
    ):
        raise ConnectionBroken("broken.", "")
    assert not answers("127.0.0.1:1")


def test_errors_of_the_living_stay_as_they_are() -> None:
    with pytest.raises(KeyError), watching_peers([], lambda: None):
        raise KeyError("x")
    with PeerWatch([], lambda: None) as watch:
        assert watch.dead == ""
