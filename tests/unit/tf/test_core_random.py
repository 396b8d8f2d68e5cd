"""Random ops of a resumed graph draw what the uninterrupted one's would have drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.tensorflow.graph_walk import ancestors
from portwright.tensorflow.random_counters import RandomCounters

v1 = tf.compat.v1


def uniform(rows: Any) -> Any:
    return tf.random.uniform([rows, 3])


def normal(rows: Any) -> Any:
    return tf.random.normal([rows, 3], dtype=tf.float16)


def truncated(rows: Any) -> Any:
    return tf.random.truncated_normal([rows, 5], dtype=tf.float64)


def integers(rows: Any) -> Any:
    return tf.random.uniform([rows], 2, 50, dtype=tf.int64)


def dropout(rows: Any) -> Any:
    return tf.nn.dropout(tf.ones([rows, 4]), rate=0.5)


def run(
    draw: Callable[[Any], Any], rows: list[int], is_static: bool, drawn: dict[str, int] | None
) -> tuple[list[Any], RandomCounters]:
    with tf.Graph().as_default():
        v1.set_random_seed(3)
        size = tf.constant(rows[0]) if is_static else v1.placeholder(tf.int32, [])
        value = draw(rows[0] if is_static else size)
        value = tf.stack([value, value])  # two uses of one draw
        counters = RandomCounters(ancestors([value]), 99, drawn)
        fetches = [value] if counters.sizes is None else [value, counters.sizes]
        assert (counters.sizes is None) == is_static
        values = []
        with v1.Session() as session:
            counters.initialize(session)
            for number in rows:
                found, *sizes = session.run(fetches, {} if is_static else {size: number})
                counters.count(sizes[0] if sizes else None)
                values.append(found)
    return values, counters


def unseeded(rows: Any) -> Any:
    return tf.raw_ops.RandomUniform(shape=[rows], dtype=tf.float32)


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("draw", [uniform, normal, truncated, integers, dropout, unseeded])
def test_the_rest_of_a_run_equals_the_whole(draw: Callable[[Any], Any], is_static: bool) -> None:
    rows = [4] * 5 if is_static else [4, 1, 0, 300, 7]
    whole, _ = run(draw, rows, is_static, None)
    _, counters = run(draw, rows[:2], is_static, None)
    middle, more = run(draw, rows[2:4], is_static, counters.drawn)
    rest, _ = run(draw, rows[4:], is_static, more.drawn)
    for one, other in zip(whole[2:], [*middle, *rest], strict=True):
        assert np.array_equal(one, other)
        assert other.size == 0 or np.array_equal(other[0], other[1])


def test_what_cannot_go_on_is_named() -> None:
    with tf.Graph().as_default():
        v1.set_random_seed(3)
        flag = v1.placeholder(tf.bool, [])
        branch = tf.cond(flag, lambda: tf.random.uniform([2]), lambda: tf.zeros([2]))
        shuffled = tf.random.shuffle(branch)
        other = tf.random.uniform([2])
        problems = RandomCounters(ancestors([shuffled + other]), 1).problems
        new = RandomCounters(ancestors([tf.random.uniform([2], name="fresh")]), 1, {}).problems
    told = "; ".join(problems)
    assert "RandomShuffle has a state" in told
    assert "RandomUniform in a branch" in told
    assert len(problems) == 2
    assert "fresh" in new[0]
