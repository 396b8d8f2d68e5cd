"""The MLP's step in a loop inside the graph, several steps a call: what bundling would add to a loop that costs nothing.

The model is written in raw ops, which is the only way to have an optimizer's updates in such a loop for one and for
several steps alike; so its figures compare with each other, and not with those of an Estimator.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
SIZES = (784, 128, 128, 128, 10)


def measure_bundle(data: Callable[[], Any], steps_a_call: int, stretch: int) -> float:
    """Milliseconds a step, the median of five stretches."""
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        iterator = v1.data.make_initializable_iterator(data())
        bundle = _bundle(iterator, steps_a_call)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), iterator.initializer])
            call = session.make_callable(bundle)
            values = []
            for _ in range(6):
                start = time.perf_counter()
                for _ in range(stretch // steps_a_call):
                    call()
                values.append(1000 * (time.perf_counter() - start) / stretch)
    return statistics.median(values[1:])


def _bundle(iterator: Any, num_steps: int) -> list[Any]:
    shapes = [shape for pair in itertools.pairwise(SIZES) for shape in (pair, pair[1:])]
    weights = [v1.Variable(tf.random.normal(shape, stddev=0.05), use_resource=True) for shape in shapes]
    slots = [v1.Variable(tf.zeros(shape), use_resource=True) for shape in shapes]
    number = v1.Variable(0, dtype=tf.int64, use_resource=True)

    def step(index: Any, losses: Any) -> tuple[Any, Any]:
        x, labels = iterator.get_next()
        values = [weight.read_value() for weight in weights]
        for layer in range(0, len(values), 2):
            x = tf.matmul(tf.nn.relu(x) if layer else x, values[layer]) + values[layer + 1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))
        made = [
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=slot.handle, lr=0.01, grad=gradient, momentum=0.9
            )
            for weight, slot, gradient in zip(weights, slots, tf.gradients(loss, values), strict=True)
        ]
        with tf.control_dependencies([*made, number.assign_add(1, read_value=False)]):
            return index + 1, losses.write(index, tf.identity(loss))

    losses = tf.TensorArray(tf.float32, num_steps)
    if num_steps == 1:
        _, losses = step(tf.constant(0), losses)
    else:
        _, losses = tf.while_loop(
            lambda index, _: index < num_steps, step, [tf.constant(0), losses], parallel_iterations=1
        )
    made = losses.stack()
    with tf.control_dependencies([made]):
        return [made, tf.identity(number.read_value())]
