"""Gradients of several batches averaged for one update, in the graph.

Every run of the train op takes one batch; the last of each `num_batches` updates. The sums are slots of the optimizer
and the count a variable, so that a checkpoint taken in between goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.tensorflow.gradient_clipping import values_of

v1 = tf.compat.v1

_BATCHES_PER_UPDATE = "portwright/batches_per_update"  # a graph collection, for who must count batches


def batches_per_update(graph: Any = None) -> int:
    """How many runs of a graph's train op make one step of global_step; 1 without accumulation."""
    graph = v1.get_default_graph() if graph is None else graph
    found = graph.get_collection(_BATCHES_PER_UPDATE)
    return int(found[0]) if found else 1


class Accumulation:
    """Sums of gradients, [GradAccum slots], and how many batches they hold, [grad_accum_count]."""

    def __init__(self, optimizer: Any, variables: list[Any], num_batches: int) -> None:
        self._num_batches = num_batches
        with tf.init_scope():
            self._sums = [
                optimizer._zeros_slot(variable, "grad_accum", "GradAccum") for variable in variables
            ]
        self._count = v1.Variable(
            lambda: tf.constant(0, tf.int64), trainable=False, name="grad_accum_count", use_resource=True
        )
        v1.get_default_graph().get_collection_ref(_BATCHES_PER_UPDATE)[:] = [num_batches]

    def add(self, gradients: list[Any], update: Callable[[list[Any]], Any]) -> Any:
        """Adds the gradients of a batch and, with the last one, calls `update` with the means and starts anew."""
        added = [self._add_one(held, gradient) for held, gradient in zip(self._sums, gradients, strict=True)]
        with tf.control_dependencies(added):
            is_last = tf.convert_to_tensor(self._count) + 1 >= self._num_batches

        def finish() -> Any:
            means = [v1.identity(held.read_value()) for held in self._sums]
            updated = update(means)
            with tf.control_dependencies([updated]):
                emptied = [v1.assign(held, tf.zeros_like(held)) for held in self._sums]
                return _as_tensor([*emptied, v1.assign(self._count, tf.constant(0, tf.int64))])

        def go_on() -> Any:
            return _as_tensor([v1.assign_add(self._count, tf.constant(1, tf.int64))])

        return tf.cond(is_last, finish, go_on)

    def _add_one(self, held: Any, gradient: Any) -> Any:
        share = values_of(gradient) / tf.cast(self._num_batches, values_of(gradient).dtype)
        share = tf.cast(share, held.dtype.base_dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return v1.scatter_add(held, gradient.indices, share)
        return v1.assign_add(held, share)


def _as_tensor(operations: list[Any]) -> Any:
    """Branches of a condition must give tensors."""
    with tf.control_dependencies(operations):
        return tf.constant(True)
