"""Model functions of the ready-made models, on Keras's layers and optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.canned.head import Head
from portwright.tensorflow.canned.heads import BinaryClassHead, MultiClassHead, RegressionHead
from portwright.tensorflow.canned.networks import Dnn, Linear, Logits, check_features, summarize_layer
from portwright.tensorflow.mode_keys import ModeKeys

v1 = tf.compat.v1
legacy = tf.keras.optimizers.legacy

BASELINE_RATE = 0.3
LINEAR_RATE = 0.2
DNN_RATE = 0.05
COMBINED_DNN_RATE = 0.001
COMBINED_LINEAR_RATE = 0.005

_OPTIMIZERS = {
    "Adagrad": legacy.Adagrad,
    "Adam": legacy.Adam,
    "Ftrl": legacy.Ftrl,
    "RMSProp": legacy.RMSprop,
    "SGD": legacy.SGD,
}

ModelFn = Callable[..., Any]
regression_head = RegressionHead


def class_head(
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Any,
    loss_reduction: str,
    binary: Callable[..., Head] = BinaryClassHead,
    multi: Callable[..., Head] = MultiClassHead,
) -> Head:
    """The head for a number of classes."""
    if n_classes == 2:
        return binary(weight_column, None, label_vocabulary, loss_reduction)
    return multi(n_classes, weight_column, label_vocabulary, loss_reduction)


def dnn_model_fn(head: Head, dnn: Dnn, optimizer: Any) -> ModelFn:
    """Fully connected layers."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        logits = dnn.keras_logits(features, mode, head.logits_dimension)
        made = _counting(keras_optimizer(optimizer)) if mode == ModeKeys.TRAIN else None
        return head.create_estimator_spec(
            features, mode, logits.values, labels, made, logits.variables, update_ops=logits.updates
        )

    return model_fn


def linear_model_fn(head: Head, linear: Linear, optimizer: Any) -> ModelFn:
    """A linear model."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with v1.variable_scope("linear"):
            logits = linear.logits(features, head.logits_dimension)
        made = None
        if mode == ModeKeys.TRAIN:
            chosen = optimizer or tf.keras.optimizers.legacy.Ftrl(linear_rate(linear, LINEAR_RATE))
            made = _counting(keras_optimizer(chosen, LINEAR_RATE))
        return head.create_estimator_spec(features, mode, logits.values, labels, made, logits.variables)

    return model_fn


def combined_model_fn(
    head: Head, linear: Linear | None, linear_optimizer: Any, dnn: Dnn | None, dnn_optimizer: Any
) -> ModelFn:
    """The sum of both, each with its optimizer."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        parts: list[tuple[Logits, Any]] = []
        if dnn is not None:
            made = keras_optimizer(dnn_optimizer, COMBINED_DNN_RATE) if mode == ModeKeys.TRAIN else None
            parts.append((dnn.keras_logits(features, mode, head.logits_dimension), made))
        if linear is not None:
            rate = linear_rate(linear, COMBINED_LINEAR_RATE)
            made = keras_optimizer(linear_optimizer, rate) if mode == ModeKeys.TRAIN else None
            with v1.variable_scope("linear"):
                logits = linear.logits(features, head.logits_dimension)
            summarize_layer(logits.values, "linear")
            parts.append((logits, made))
        if mode == ModeKeys.TRAIN:
            _counting(parts[0][1])  # one of the optimizers counts the global step

        def train_op_fn(loss: Any) -> Any:
            updates = [made.get_updates(loss, logits.variables) for logits, made in parts]
            return tf.group(*updates, *(logits.updates for logits, _ in parts))

        total = parts[0][0].values if len(parts) == 1 else parts[0][0].values + parts[1][0].values
        return head.create_estimator_spec(features, mode, total, labels, train_op_fn=train_op_fn)

    return model_fn


def baseline_model_fn(head: Head, optimizer: Any, weight_column: Any) -> ModelFn:
    """A bias alone, whatever the features are."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        with tf.name_scope("baseline"):
            bias = tf.Variable(tf.zeros([head.logits_dimension]), name="bias")
            logits = baseline_logits(bias, features, weight_column, head.logits_dimension)
        made = _counting(keras_optimizer(optimizer, BASELINE_RATE)) if mode == ModeKeys.TRAIN else None
        return head.create_estimator_spec(features, mode, logits, labels, made, [bias])

    return model_fn


def baseline_logits(bias: Any, features: Any, weight_column: Any, units: int) -> Any:
    """The bias repeated for each example; all features must have the same number of examples."""
    weight_key = getattr(weight_column, "key", weight_column)
    sizes = [tf.shape(value)[0] for key, value in check_features(features).items() if key != weight_key]
    if not sizes:
        raise BadValue("There is no feature but the weights.", "Let input_fn return one feature or more.")
    with tf.control_dependencies([v1.debugging.assert_equal(sizes[0], size) for size in sizes[1:]]):
        return tf.multiply(bias, tf.ones([sizes[0], units]))


def linear_rate(linear: Linear, most: float) -> float:
    """The default learning rate of a linear model: smaller for more columns."""
    return min(most, 1.0 / math.sqrt(len(linear.feature_columns)))


def check_head(head: Any) -> None:
    """Refuses an object that is no head."""
    if not isinstance(head, Head):
        raise BadType(
            f"head is a {type(head).__name__}.", "Give a head, e.g. portwright.tensorflow.RegressionHead()."
        )


def _counting(optimizer: Any) -> Any:
    """Makes the optimizer count the global step, and returns it."""
    optimizer.iterations = v1.train.get_or_create_global_step()
    return optimizer


def keras_optimizer(given: Any, learning_rate: float | None = None) -> Any:
    """One of Keras's legacy optimizers for one graph, given by name, as an instance or as a function.

    `learning_rate` is for one given by name; None is its own default.
    """
    if isinstance(given, str):
        make = find_optimizer(given, _OPTIMIZERS)
        return make() if learning_rate is None else make(learning_rate=learning_rate)
    made = given() if callable(given) and not isinstance(given, tf.Module) else given
    if isinstance(made, legacy.Optimizer):
        # A copy: an instance that has trained already has its variables in another graph.
        return made if made._iterations is None else type(made).from_config(made.get_config())
    cure = "Give one of tf.keras.optimizers.legacy, or a name."
    if isinstance(made, v1.train.Optimizer):
        cure = f"{cure} The estimators in portwright.tensorflow.canned.v1 take those of tf.compat.v1.train."
    raise BadType(f"The optimizer is a {type(made).__name__}.", cure)


def find_optimizer(name: str, known: dict[str, Any]) -> Any:
    """The class of an optimizer by its name."""
    if name not in known:
        raise BadValue(f"There is no optimizer '{name}'.", suggest(name, known))
    return known[name]
