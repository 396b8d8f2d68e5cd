"""What TensorFlow's own errors become: one line, the user's place, the cure."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from typing import Any

import pytest
import tensorflow as tf

from portwright.errors import ExitStatus
from portwright.job.logs import Console
from portwright.tensorflow.failures import explain, explain_non_finite
from portwright.tensorflow.run_modes import quiet_tensorflow


def error_of(fetch: Any, init: Any = None) -> Exception:
    with tf.compat.v1.Session() as session:
        if init is not None:
            session.run(init)
        with pytest.raises(tf.errors.OpError) as caught:
            session.run(fetch)
    return caught.value


def test_an_op_of_the_model_is_told_with_the_line_that_made_it() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder_with_default([[1.0, 2.0]], [None, 2])
        told = explain(error_of(tf.gather(x, [7])))
    assert "test_run_failures.py:" in told.message
    assert "indices[0] = 7 is not in [0, 1)" in told.message
    assert "Graph execution" not in told.message
    assert "node" not in told.message


@pytest.mark.parametrize("kind", ["file", "map"])
def test_an_input_pipeline_is_told_as_such(kind: str) -> None:
    with tf.Graph().as_default():
        if kind == "file":
            dataset = tf.data.TFRecordDataset("nosuch.tfrecord")
        else:
            dataset = tf.data.Dataset.range(3).map(
                lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x, tf.float32), "bad")
            )
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        told = explain(error_of(iterator.get_next(), iterator.initializer))
    assert told.message.startswith("the input pipeline failed: ")
    assert ("nosuch.tfrecord; No such file" if kind == "file" else "bad : Tensor had Inf") in told.message
    assert "[[" not in told.message
    assert "Iterator::" not in told.message


def test_an_error_that_is_not_tensorflows_is_told_too() -> None:
    with pytest.raises(KeyError) as caught:
        {}["x"]
    assert "test_run_failures.py:" in explain(caught.value).message


def test_memory_that_is_not_there_has_a_cure() -> None:
    told = explain(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"))
    assert "batch_size" in told.cure


@pytest.mark.parametrize("reason", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_not_taken_for_memory(reason: str) -> None:
    told = explain(tf.errors.ResourceExhaustedError(None, None, f"out/graph.pbtxt.tmp1; {reason}"))
    assert "Cannot write out/graph.pbtxt.tmp1: no space left" in told.message
    assert "Free space" in told.cure


@pytest.mark.parametrize(
    ("step", "bad", "recent", "said", "status"),
    [
        (1, "features holds 3 non-finite value(s)", [], "features holds 3", ExitStatus.USAGE),
        (9, "features holds 3 non-finite value(s)", [0.5], "step 9", ExitStatus.NON_FINITE),
        (9, None, [1.0, 3.0, 90.0], "diverges", ExitStatus.NON_FINITE),
        (9, None, [0.5, 0.4, 0.45], "after 0.5, 0.4, 0.45", ExitStatus.NON_FINITE),
        (1, None, [], "log(0)", ExitStatus.NON_FINITE),
    ],
)
def test_a_loss_that_is_not_finite(step: int, bad: Any, recent: Any, said: str, status: ExitStatus) -> None:
    error = explain_non_finite(step, bad, deque(recent))
    assert said in error.message
    assert error.status == status


def test_messages_of_tensorflow_come_as_ours_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    logger = tf.get_logger()
    before = list(logger.handlers)
    with quiet_tensorflow(Console()), warnings.catch_warnings():
        logger.warning("the input may be\nempty")
        logger.warning("From x.py: f is deprecated and will be removed")
        logger.log(logging.INFO, "nothing")
    assert capsys.readouterr().err == "warning: the input may be empty\n"
    assert logger.handlers == before
