"""Heads and model functions of the ready-made models, on TensorFlow 1's metrics, reductions, layers and optimizers.

The scopes in which variables and steps are made, and their partitioners, are tf.estimator's: slots are named
after them (`kernel/t_0/Adagrad`), and checkpoints only fit by name.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadType
from portwright.tensorflow.canned import heads, model_fns
from portwright.tensorflow.canned.head import V1_REDUCTIONS, Head, SingleHead, check_reduction, make_train_op
from portwright.tensorflow.canned.head_inputs import check_logits
from portwright.tensorflow.canned.model_fns import (
    BASELINE_RATE,
    COMBINED_DNN_RATE,
    COMBINED_LINEAR_RATE,
    DNN_RATE,
    LINEAR_RATE,
    ModelFn,
    baseline_logits,
    check_head,
    find_optimizer,
    linear_rate,
)
from portwright.tensorflow.canned.networks import Dnn, Linear, summarize_layer
from portwright.tensorflow.mode_keys import ModeKeys

v1 = tf.compat.v1

_INPUT_SLICE_BYTES = 64 << 20
_OPTIMIZERS = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


class _Version1(SingleHead):
    def _check_reduction(self, reduction: str) -> None:
        check_reduction(reduction, V1_REDUCTIONS)

    def _metric_ops(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Any
    ) -> dict[str, Any]:
        measures = self._measures()
        observed = self._observe(features, logits, labels, regularization_losses)
        return {self._key(key): measures[key].as_ops(key, *values) for key, values in observed.items()}

    def _train_op(self, loss: Any, optimizer: Any, variables: Any, train_op_fn: Any, update_ops: Any) -> Any:
        collected = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        return make_train_op(loss, optimizer, variables, train_op_fn, [*(update_ops or ()), *collected])

    def _more_summaries(self, features: Any, logits: Any, labels: Any) -> dict[str, Any]:
        if self._loss_reduction != v1.losses.Reduction.SUM:
            return {}
        logits = check_logits(logits, self.logits_dimension)
        unweighted, weights = self._losses(self._targets(labels, logits), logits, features)
        total_weight = tf.reduce_sum(weights * tf.ones_like(unweighted))
        return {"average_loss": tf.reduce_sum(unweighted * weights) / total_weight}


class BinaryClassHead(_Version1, heads.BinaryClassHead):
    """Two classes."""


class MultiClassHead(_Version1, heads.MultiClassHead):
    """Three or more classes."""


class RegressionHead(_Version1, heads.RegressionHead):
    """Numbers."""


regression_head = RegressionHead
class_head = functools.partial(model_fns.class_head, binary=BinaryClassHead, multi=MultiClassHead)


def dnn_model_fn(head: Head, dnn: Dnn, optimizer: Any, input_partitioner: Any) -> ModelFn:
    """Fully connected layers."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        made = v1_optimizer(optimizer, DNN_RATE) if mode == ModeKeys.TRAIN else None
        with v1.variable_scope("dnn", partitioner=_partitioner(config)):
            inner = input_partitioner or _partitioner(config, _INPUT_SLICE_BYTES)
            logits = dnn.v1_logits(features, mode, head.logits_dimension, inner)
            return head.create_estimator_spec(features, mode, logits, labels, made)

    return model_fn


def linear_model_fn(head: Head, linear: Linear, optimizer: Any, partitioner: Any) -> ModelFn:
    """A linear model."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with v1.variable_scope("linear", partitioner=partitioner or _partitioner(config, _INPUT_SLICE_BYTES)):
            logits = linear.logits(features, head.logits_dimension)
            chosen = optimizer or v1.train.FtrlOptimizer(linear_rate(linear, LINEAR_RATE))
            made = v1_optimizer(chosen, LINEAR_RATE) if mode == ModeKeys.TRAIN else None
            return head.create_estimator_spec(features, mode, logits.values, labels, made)

    return model_fn


def combined_model_fn(
    head: Head,
    linear: Linear | None,
    linear_optimizer: Any,
    dnn: Dnn | None,
    dnn_optimizer: Any,
    input_partitioner: Any,
) -> ModelFn:
    """The sum of both, each with its optimizer."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        inner = input_partitioner or _partitioner(config, _INPUT_SLICE_BYTES)
        parts: list[tuple[Any, str, Any]] = []
        if dnn is not None:
            with v1.variable_scope("dnn", partitioner=_partitioner(config)) as scope:
                logits = dnn.v1_logits(features, mode, head.logits_dimension, inner)
            parts.append((logits, scope.name, v1_optimizer(dnn_optimizer, COMBINED_DNN_RATE)))
        if linear is not None:
            with v1.variable_scope("linear", partitioner=inner) as scope:
                logits = linear.logits(features, head.logits_dimension).values
                summarize_layer(logits, scope.name)
            rate = linear_rate(linear, COMBINED_LINEAR_RATE)
            parts.append((logits, scope.name, v1_optimizer(linear_optimizer, rate)))

        def train_op_fn(loss: Any) -> Any:
            steps = [
                made.minimize(loss, var_list=v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=name))
                for _, name, made in parts
            ]
            with tf.control_dependencies([tf.group(*steps)]):
                return v1.assign_add(v1.train.get_global_step(), 1).op

        total = parts[0][0] if len(parts) == 1 else parts[0][0] + parts[1][0]
        return head.create_estimator_spec(features, mode, total, labels, train_op_fn=train_op_fn)

    return model_fn


def baseline_model_fn(head: Head, optimizer: Any, weight_column: Any) -> ModelFn:
    """A bias alone, whatever the features are."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with v1.variable_scope("baseline"):
            bias = v1.get_variable("bias", [head.logits_dimension], initializer=v1.zeros_initializer())
            logits = baseline_logits(bias, features, weight_column, head.logits_dimension)

        def train_op_fn(loss: Any) -> Any:
            return v1_optimizer(optimizer, BASELINE_RATE).minimize(loss, v1.train.get_global_step())

        return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)

    return model_fn


def _partitioner(config: Any, min_slice_bytes: int | None = None) -> Any:
    options = {} if min_slice_bytes is None else {"min_slice_size": min_slice_bytes}
    return v1.min_max_variable_partitioner(max_partitions=config.num_ps_replicas if config else 0, **options)


def v1_optimizer(given: Any, learning_rate: float) -> Any:
    """An optimizer of tf.compat.v1.train, given by name, as an instance or as a function; `learning_rate` is for a name."""
    if isinstance(given, str):
        return find_optimizer(given, _OPTIMIZERS)(learning_rate=learning_rate)
    made = given() if callable(given) else given
    if isinstance(made, v1.train.Optimizer):
        return made
    raise BadType(f"The optimizer is a {type(made).__name__}.", "Give one of tf.compat.v1.train, or a name.")
