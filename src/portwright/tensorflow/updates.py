"""Updates that Keras layers leave to whoever trains them, such as BatchNorm's moving mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tf_keras.src.engine import base_layer_v1  # type: ignore[import-untyped]

from portwright.tensorflow.graph_walk import ancestors, descendants

if TYPE_CHECKING:
    from portwright.tensorflow.processes import Processes

_STATISTICS = re.compile(r"/moving_(mean|variance)$")  # of layers that do not say what they are


@contextmanager
def recording_layers() -> Iterator[list[Any]]:
    """Yields a list of the Keras layers that register an update while the block runs."""
    layers: list[Any] = []
    original = base_layer_v1.Layer.add_update

    def add_update(layer: Any, updates: Any) -> Any:
        if not any(layer is known for known in layers):
            layers.append(layer)
        return original(layer, updates)

    base_layer_v1.Layer.add_update = add_update
    try:
        yield layers
    finally:
        base_layer_v1.Layer.add_update = original


def missing_updates(layers: list[Any], train_op: Any) -> list[Any]:
    """Updates of these layers that a training step does not make by itself.

    Those in the collection UPDATE_OPS are the model function's to run, as they always were. Those that hang on a
    placeholder were made while a Keras model was put together, and belong to no batch.
    """
    if not layers:
        return []
    known = {_op(update).name for update in tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)}
    run = ancestors([train_op])
    graph = tf.compat.v1.get_default_graph()
    of_no_batch = descendants(op for op in graph.get_operations() if op.type == "Placeholder")
    found = [_op(update) for layer in layers for update in layer.updates]
    return [
        op
        for op in found
        if op.graph is graph and op not in run and op.name not in known and op not in of_no_batch
    ]


def with_shared_statistics(train_op: Any, processes: Processes) -> Any:
    """A training step after which the statistics that each process took of its own data are the means over all.

    Those are the variables that ask for it (ON_READ, MEAN), as BatchNorm's do; a checkpoint holds one value of each.
    """
    moving = [variable for variable in tf.compat.v1.global_variables() if _is_statistic(variable)]
    if not moving:
        return train_op
    with tf.control_dependencies([train_op]):
        means = processes.mean_all([variable.read_value() for variable in moving])
        return tf.group(*(tf.compat.v1.assign(v, mean) for v, mean in zip(moving, means, strict=True)))


def _is_statistic(variable: Any) -> bool:
    if variable.trainable or not variable.dtype.is_floating:
        return False
    is_declared = (
        variable.synchronization == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.MEAN
    )
    return is_declared or _STATISTICS.search(variable.op.name) is not None


def _op(update: Any) -> tf.Operation:
    return update if isinstance(update, tf.Operation) else update.op
