"""The logits of the ready-made models, with the variables' names that tf.estimator gave them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.mode_keys import ModeKeys

v1 = tf.compat.v1

_MOMENTUM = 0.999  # of batch normalization


@dataclass(frozen=True)
class Logits:
    """Logits, the variables that they depend on, and the updates of batch normalization."""

    values: Any
    variables: list[Any]
    updates: list[Any]


@dataclass(frozen=True)
class Dnn:
    """Fully connected layers over dense columns."""

    hidden_units: Sequence[int]
    feature_columns: Sequence[Any]
    activation_fn: Callable[[Any], Any]
    dropout: float | None
    batch_norm: bool

    def keras_logits(self, features: Any, mode: str, units: int) -> Logits:
        """Logits of Keras layers; the caller's scopes name their variables."""
        is_training = mode == ModeKeys.TRAIN
        used: list[Any] = []

        def apply(layer: Any, net: Any, **options: Any) -> Any:
            used.append(layer)
            return layer(net, **options)

        with tf.name_scope("dnn"):
            columns = tf.keras.layers.DenseFeatures(
                self.feature_columns, name="input_from_feature_columns/input_layer"
            )
            net = apply(columns, check_features(features))
            for index, width in enumerate(self.hidden_units):
                name = f"hiddenlayer_{index}"
                net = apply(_dense(width, self.activation_fn, name), net)
                if self.dropout is not None and is_training:
                    net = apply(tf.keras.layers.Dropout(self.dropout), net, training=True)
                if self.batch_norm:
                    norm = tf.keras.layers.BatchNormalization(
                        momentum=_MOMENTUM, name=f"{name}/batchnorm_{index}"
                    )
                    net = apply(norm, net, training=is_training)
                summarize_layer(net, f"dnn/{name}")
            logits = apply(_dense(units, None, "logits"), net)
            summarize_layer(logits, "dnn/logits")
        variables = [variable for layer in used for variable in layer.trainable_variables]
        return Logits(logits, variables, [update for layer in used for update in layer.updates])

    def v1_logits(self, features: Any, mode: str, units: int, partitioner: Any) -> Any:
        """Logits of tf.compat.v1.layers in the caller's variable scope; updates go to the collection UPDATE_OPS."""
        is_training = mode == ModeKeys.TRAIN
        glorot = v1.glorot_uniform_initializer()
        with v1.variable_scope("input_from_feature_columns", partitioner=partitioner):
            net = v1.feature_column.input_layer(check_features(features), list(self.feature_columns))
        for index, width in enumerate(self.hidden_units):
            name = f"hiddenlayer_{index}"
            net = v1.layers.Dense(width, self.activation_fn, kernel_initializer=glorot, name=name)(net)
            if self.dropout is not None and is_training:
                net = v1.layers.Dropout(self.dropout)(net, training=True)
            if self.batch_norm:
                with v1.variable_scope(name):
                    norm = v1.layers.BatchNormalization(momentum=_MOMENTUM, name=f"batchnorm_{index}")
                    net = norm(net, training=is_training)
            summarize_layer(net, f"{v1.get_variable_scope().name}/{name}")
        logits = v1.layers.Dense(units, kernel_initializer=glorot, name="logits")(net)
        summarize_layer(logits, f"{v1.get_variable_scope().name}/logits")
        return logits


@dataclass(frozen=True)
class Linear:
    """A weight for each value and category, summed up with a bias."""

    feature_columns: Sequence[Any]
    sparse_combiner: str

    def logits(self, features: Any, units: int) -> Logits:
        """The logits; the caller's variable scope names the variables."""
        made: dict[Any, list[Any]] = {}
        with warnings.catch_warnings():  # TensorFlow's own linear_model calls a deprecated function
            warnings.filterwarnings("ignore", message=".*add_variable")
            values = v1.feature_column.linear_model(
                check_features(features),
                list(self.feature_columns),
                units=units,
                sparse_combiner=self.sparse_combiner,
                cols_to_vars=made,
            )
        bias = _flat(made.pop("bias"))
        weights = _flat(made.values())
        if units > 1:
            v1.summary.histogram("bias", bias[0])
        else:
            v1.summary.scalar("bias", bias[0][0])
        zeros = [tf.reduce_sum(tf.cast(tf.equal(weight, 0), tf.float32)) for weight in weights]
        sizes = [tf.cast(tf.size(weight), tf.float32) for weight in weights]
        v1.summary.scalar("fraction_of_zero_weights", tf.add_n(zeros) / tf.add_n(sizes))
        return Logits(values, [*weights, *bias], [])


def check_features(features: Any) -> dict[str, Any]:
    """Features as a dict, as columns need them; refuses anything else."""
    if not isinstance(features, Mapping):
        raise BadType(
            f"The features are a {type(features).__name__}.", "Let input_fn return a dict of tensors."
        )
    return dict(features)


def check_columns(feature_columns: Any, what: str = "feature_columns") -> list[Any]:
    """Columns as a list, which must not be empty."""
    columns = list(feature_columns or ())
    if not columns:
        raise BadValue(f"{what} is {feature_columns!r}.", "Give one column or more of tf.feature_column.")
    return columns


def summarize_layer(value: Any, tag: str) -> None:
    """Adds summaries of a layer's output for TensorBoard."""
    v1.summary.scalar(f"{tag}/fraction_of_zero_values", tf.math.zero_fraction(value))
    v1.summary.histogram(f"{tag}/activation", value)


def _dense(units: int, activation: Any, name: str) -> Any:
    return tf.keras.layers.Dense(
        units, activation, kernel_initializer=v1.glorot_uniform_initializer(), name=name
    )


def _flat(variables: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for item in variables:
        # A partitioned variable is replaced by its parts.
        found += [item] if isinstance(item, tf.Variable) else _flat(item)
    return found
