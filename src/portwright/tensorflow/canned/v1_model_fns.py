"""Model functions of the ready-made models, on TensorFlow 1's layers and optimizers.

The scopes in which variables and steps are made, and their partitioners, are tf.estimator's: slots are named
after them (`kernel/t_0/Adagrad`), and checkpoints only fit by name.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.canned.head import Head
from portwright.tensorflow.canned.model_fns import (
    BASELINE_RATE,
    COMBINED_DNN_RATE,
    COMBINED_LINEAR_RATE,
    DNN_RATE,
    LINEAR_RATE,
    ModelFn,
    baseline_logits,
    check_head,
    linear_rate,
)
from portwright.tensorflow.canned.networks import Dnn, Linear, summarize_layer
from portwright.tensorflow.canned.optimizers import v1_optimizer
from portwright.tensorflow.canned.v1_heads import V1BinaryClassHead, V1MultiClassHead
from portwright.tensorflow.mode_keys import ModeKeys

v1 = tf.compat.v1

_INPUT_SLICE_BYTES = 64 << 20


def v1_class_head(n_classes: int, weight_column: Any, label_vocabulary: Any, loss_reduction: str) -> Head:
    """The head for this number of classes."""
    if n_classes == 2:
        return V1BinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)
    return V1MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)


def v1_dnn_model_fn(head: Head, dnn: Dnn, optimizer: Any, input_partitioner: Any) -> ModelFn:
    """Fully connected layers."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        made = v1_optimizer(optimizer, DNN_RATE) if mode == ModeKeys.TRAIN else None
        with v1.variable_scope("dnn", partitioner=_partitioner(config)):
            inner = input_partitioner or _partitioner(config, _INPUT_SLICE_BYTES)
            logits = dnn.v1_logits(features, mode, head.logits_dimension, inner)
            return head.create_estimator_spec(features, mode, logits, labels, made)

    return model_fn


def v1_linear_model_fn(head: Head, linear: Linear, optimizer: Any, partitioner: Any) -> ModelFn:
    """A linear model."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with v1.variable_scope("linear", partitioner=partitioner or _partitioner(config, _INPUT_SLICE_BYTES)):
            logits = linear.logits(features, head.logits_dimension)
            chosen = optimizer or v1.train.FtrlOptimizer(linear_rate(linear, LINEAR_RATE))
            made = v1_optimizer(chosen, LINEAR_RATE) if mode == ModeKeys.TRAIN else None
            return head.create_estimator_spec(features, mode, logits.values, labels, made)

    return model_fn


def v1_combined_model_fn(
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


def v1_baseline_model_fn(head: Head, optimizer: Any, weight_column: Any) -> ModelFn:
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
