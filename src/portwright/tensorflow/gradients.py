"""Changes to gradients before the update: loss scaling, means over replicas and steps, clipping; and rates of weight decay."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from portwright.errors import UnsupportedError
from portwright.job.optimizer import OptimizerParams

v1 = tf.compat.v1


def without_duplicates(gradient: Any) -> Any:
    """A sparse gradient whose repeated rows are added up, as its norm and the clipping of its values need."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def as_dense(gradient: Any, num_rows: Any) -> Any:
    """A sparse gradient as a whole tensor."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, num_rows)


def values_of(gradient: Any) -> Any:
    """The numbers of a gradient, whether dense or sparse."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Any, values: Any) -> Any:
    """A gradient with other numbers; a sparse one keeps its rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def gradient_norm(gradients: list[Any]) -> Any:
    """The 2-norm of all gradients as one vector, in float32; sparse ones must not repeat a row."""
    squares = [tf.reduce_sum(tf.square(tf.cast(values_of(gradient), tf.float32))) for gradient in gradients]
    return tf.sqrt(tf.add_n(squares))


def clip_gradients(
    gradients: list[Any], max_norm: float | None, max_value: float | None, norm: Any
) -> list[Any]:
    """Scales all gradients so that their joint norm stays under `max_norm`, or clamps each number to `max_value`."""
    if max_value is not None:
        return [
            with_values(gradient, tf.clip_by_value(values_of(gradient), -max_value, max_value))
            for gradient in gradients
        ]
    if max_norm is None:
        return gradients
    factor = tf.minimum(max_norm / (norm + 1e-6), 1.0)  # as on the PyTorch side
    return [
        with_values(gradient, values_of(gradient) * tf.cast(factor, values_of(gradient).dtype))
        for gradient in gradients
    ]


def num_replicas() -> int:
    """The number of replicas of the current tf.distribute strategy; 1 without one."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def check_replicas(spec: OptimizerParams) -> None:
    """Refuses options for which all replicas would have to agree in the middle of a step."""
    wanted = [
        name
        for name, is_wanted in (
            ("loss_scaling_factor", spec.loss_scaling_factor != 1.0),
            ("grad_accum_steps", spec.grad_accum_steps > 1),
        )
        if is_wanted
    ]
    if wanted and num_replicas() > 1:
        raise UnsupportedError(
            f"optimizer.{wanted[0]} does not work on {num_replicas()} replicas of a tf.distribute strategy.",
            "Leave it out; bfloat16 needs no loss scaling, and more replicas make a larger batch.",
        )


def add_up(gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Sums the gradients over the replicas, so that clipping sees those of the whole batch; each loss is a replica's share."""
    context = tf.distribute.get_replica_context()
    dense = [as_dense(g, variable.shape[0]) for g, variable in zip(gradients, variables, strict=True)]

    # Not `context.all_reduce`: it looks for variables to differentiate, and fails on their per-replica copies.
    def merge(strategy: Any, *parts: Any) -> list[Any]:
        pairs = [(part, part) for part in parts]
        return list(strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs))

    return list(context.merge_call(merge, args=tuple(dense)))


def share(gradients: list[Any]) -> list[Any]:
    """Divides summed gradients by the number of replicas: applying them sums them once more."""
    return [gradient / num_replicas() for gradient in gradients]


_BATCHES_PER_UPDATE = "portwright/batches_per_update"  # a graph collection that holds this number


def batches_per_update(graph: Any = None) -> int:
    """How many runs of a graph's train op make one step of global_step; 1 without accumulation."""
    graph = v1.get_default_graph() if graph is None else graph
    found = graph.get_collection(_BATCHES_PER_UPDATE)
    return int(found[0]) if found else 1


class Accumulation:
    """Sums of gradients (GradAccum slots), and the number of batches in them (grad_accum_count)."""

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
    """Runs the ops and returns a tensor, as a branch of tf.cond must."""
    with tf.control_dependencies(operations):
        return tf.constant(True)


class LossScale:
    """A factor on the loss, fixed or dynamic.

    A dynamic one doubles after `steps_per_increase` finite updates in a row and halves on an overflow, within its
    bounds. Its variables, `current_loss_scale`, `good_steps` and `num_skipped_updates`, are part of every checkpoint;
    the first two are named as TensorFlow's own DynamicLossScale names them.
    """

    def __init__(self, spec: OptimizerParams) -> None:
        factor = spec.loss_scaling_factor
        self.is_dynamic = isinstance(factor, str)
        self._lowest, self._highest = spec.min_loss_scale, spec.max_loss_scale
        self._steps_per_increase = spec.steps_per_increase
        first = float(spec.initial_loss_scale if isinstance(factor, str) else factor)
        # The number of updates that were skipped because a gradient was not finite.
        self.num_skipped = _state("num_skipped_updates", 0, tf.int64)
        if self.is_dynamic:
            highest = first if self._highest is None else min(self._highest, first)
            first = max(self._lowest, highest)
            self._scale = _state("current_loss_scale", first, tf.float32)
            self._good_steps = _state("good_steps", 0, tf.int64)
            self.factor = tf.convert_to_tensor(self._scale)
        else:
            self.factor = tf.constant(first, tf.float32)

    def after_finite(self) -> Any:
        """Counts a finite update, and doubles a dynamic factor when it is time to."""
        if not self.is_dynamic:
            return tf.no_op()
        count = tf.convert_to_tensor(self._good_steps) + 1
        grows = count >= self._steps_per_increase
        grown = self._clamp(self.factor * 2.0)
        # A factor of infinity in float32 would never become finite again.
        grown = tf.where(tf.math.is_finite(grown), grown, self.factor)
        scaled = v1.assign(self._scale, tf.where(grows, grown, self.factor))
        return tf.group(scaled, v1.assign(self._good_steps, tf.where(grows, tf.zeros_like(count), count)))

    def after_overflow(self) -> Any:
        """Counts a skipped update, and halves a dynamic factor."""
        skipped = v1.assign_add(self.num_skipped, tf.constant(1, tf.int64))
        if not self.is_dynamic:
            return tf.group(skipped)
        scaled = v1.assign(self._scale, self._clamp(self.factor * 0.5))
        return tf.group(skipped, scaled, v1.assign(self._good_steps, tf.constant(0, tf.int64)))

    def _clamp(self, scale: Any) -> Any:
        scale = tf.maximum(scale, self._lowest)
        return scale if self._highest is None else tf.minimum(scale, self._highest)


def _state(name: str, value: float, dtype: Any) -> Any:
    # A function, so that the initial value does not depend on the ops that must run before the train op.
    return v1.Variable(lambda: tf.constant(value, dtype), trainable=False, name=name, use_resource=True)


log = logging.getLogger(__name__)

_BIAS = re.compile(r"(^|_)bias(es)?(_|\d|$)|^b$", re.IGNORECASE)
_COPY = re.compile(r"/replica(_\d+)?$")
_OF_NORM = ("beta", "gamma", "moving_mean", "moving_variance")
_NORM_SCOPE = re.compile(r"norm|(^|_)(ln|bn)(_|\d|$)", re.IGNORECASE)
_NO_NORM = re.compile(r"(weight|spectral)_?norm|normal(_|$)", re.IGNORECASE)


def name_of(variable: Any) -> str:
    """The name under which a checkpoint holds a variable; a copy on another replica has the same."""
    return _COPY.sub("", str(variable.name).partition(":")[0])


def is_decayed(name: str, rank: int | None, patterns: Sequence[str] | None) -> bool:
    """Whether weight decay touches a variable.

    Biases and the weights of norms are not decayed, nor are names that contain one of the patterns; with an empty list
    of patterns all variables are decayed.
    """
    if patterns is not None and not patterns:
        return True
    *scopes, own = name.split("/")
    if _BIAS.search(own) or own in _OF_NORM:
        return False
    scope = scopes[-1] if scopes else own
    if (rank is None or rank <= 1) and _NORM_SCOPE.search(scope) and not _NO_NORM.search(scope):
        return False
    return not any(pattern in name for pattern in patterns or ())


def decay_rates(variables: Sequence[Any], rate: float, patterns: Sequence[str] | None) -> dict[str, float]:
    """The weight decay of each variable, by its name; a pattern that matches no variable is logged."""
    names = {name_of(variable): variable.shape.rank for variable in variables}
    if not rate:
        return dict.fromkeys(names, 0.0)
    for pattern in patterns or ():
        if not any(pattern in name for name in names):
            log.warning("exclude_from_weight_decay: '%s' is in no variable's name.", pattern)
    return {name: rate if is_decayed(name, rank, patterns) else 0.0 for name, rank in names.items()}
