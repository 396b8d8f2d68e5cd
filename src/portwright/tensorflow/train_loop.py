"""The training loop, which skips hooks that a step does not need, and the layer updates that belong to each step."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tf_keras.src.engine import base_layer_v1  # type: ignore[import-untyped]

from portwright.tensorflow.graph_walk import ancestors, descendants
from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.position import Position
from portwright.tensorflow.processes import ENDED, is_end_of_data
from portwright.tensorflow.train_hooks import counts_steps, skip_step, wants_step


@dataclass(frozen=True)
class Step:
    """The fetches of one training step: the update, its loss, and the global step after it."""

    train_op: Any
    loss: Any
    number: Any
    sizes: Any  # numbers of values drawn by random ops of unknown size; None without such ops
    agreement: Any = None  # the Agreement with other processes; None for a single process

    @property
    def fetches(self) -> list[Any]:
        stops = [] if self.agreement is None else [self.agreement.stops]
        return [self.train_op, self.loss, self.number, *stops, *([] if self.sizes is None else [self.sizes])]


def run_steps(
    session: Any,
    step: Step,
    position: Position,
    hooks: Sequence[Any],
    first_step: int,
    last_step: int | None,
    monitor: Monitor,
) -> None:
    """Makes steps until `last_step`, the end of the data, or a request to stop.

    At the end of the data it raises an OutOfRangeError, which MonitoredSession treats as a normal end.
    """
    # The wrappers around the session make it anew when a remote one is lost. A local one can be called without them.
    quick = (
        session._tf_sess().make_callable(step.fetches)
        if step.agreement is None and not session._tf_sess().sess_str
        else None
    )
    counting = [hook for hook in hooks if counts_steps(hook)]
    number, log = first_step, _Log(monitor, position, first_step)
    signals = monitor.signals
    try:
        while not session.should_stop():
            # Every hook is called: some count these calls.
            wanted = [wants_step(hook, number + 1) for hook in hooks]
            if quick is None or any(wanted):
                _, _, number, *rest = session.run(step.fetches)
            else:
                _, loss, number, *sizes = quick()
                position.advance(loss, sizes[0] if sizes else None)
                for hook in counting:
                    skip_step(hook)
            is_last = last_step is not None and number >= last_step
            if monitor.on_log is not None and monitor.is_logged(int(number), is_last):
                log.write(int(number))
            if is_last:
                position.ended = "steps"
                break
            if step.agreement is not None:
                if step.agreement.has_votes and step.agreement.is_stop_wanted(
                    session._tf_sess(), session.should_stop()
                ):
                    position.ended = "steps"  # a hook asked for it, here or in another process
                    break
                if rest[0] > 0:
                    if signals is not None:
                        signals.follow("another process")
                    break
                if signals is not None and signals.requested:
                    step.agreement.ask_to_stop(session._tf_sess())
            elif signals is not None and signals.requested:
                break
        else:
            position.ended = "steps"  # a hook asked for it
    except (tf.errors.OutOfRangeError, StopIteration):
        position.ended = "data"
        raise
    except tf.errors.InvalidArgumentError as error:
        if not is_end_of_data(error):
            raise
        position.ended = "data"
        raise tf.errors.OutOfRangeError(None, None, ENDED) from error
    finally:
        log.close(int(number))


class _Log:
    """Calls the monitor's `on_log` with losses, and the steps per second since the last call."""

    def __init__(self, monitor: Monitor, position: Position, step: int) -> None:
        self._monitor, self._position = monitor, position
        self._step, self._time = step, time.monotonic()

    def write(self, step: int) -> None:
        now = time.monotonic()
        losses = self._position.take_losses()
        if self._monitor.on_log is None or not losses:
            return
        rate = (step - self._step) / max(now - self._time, 1e-9)
        self._step, self._time = step, now
        self._monitor.on_log(step, {"loss": losses[-1], "steps_per_second": rate}, losses)

    def close(self, step: int) -> None:
        """Logs the steps since the last call, so that a log has all of them however training ends."""
        self.write(step)


if TYPE_CHECKING:
    from portwright.tensorflow.processes import Processes

_STATISTICS = re.compile(r"/moving_(mean|variance)$")  # for variables that do not declare it


@contextmanager
def recording_layers() -> Iterator[list[Any]]:
    """Yields a list of the Keras layers that register an update while the block runs.

    A metric is a layer too, but counts in local variables, which only an evaluation sets up.
    """
    layers: list[Any] = []
    original = base_layer_v1.Layer.add_update

    def add_update(layer: Any, updates: Any) -> Any:
        if not isinstance(layer, tf.keras.metrics.Metric) and not any(layer is known for known in layers):
            layers.append(layer)
        return original(layer, updates)

    base_layer_v1.Layer.add_update = add_update
    try:
        yield layers
    finally:
        base_layer_v1.Layer.add_update = original


def missing_updates(layers: list[Any], train_op: Any) -> list[Any]:
    """Updates of these layers that `train_op` does not run.

    Those in the collection UPDATE_OPS are left out: running them is up to the model function, as in tf.estimator. So are
    those that depend on a placeholder: they were made while a Keras model was built, and have no batch as input.
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
    """Extends a training step: after it, statistics that each process took of its own data are averaged over all processes.

    These are the variables that declare it (ON_READ, MEAN), as BatchNorm's do; a checkpoint holds one value of each.
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
