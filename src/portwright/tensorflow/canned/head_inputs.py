"""Checks of a head's inputs: labels, weights and logits, each with the shape that its loss needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadType, BadValue, argument_names

v1 = tf.compat.v1

_LOSS_FN_ARGUMENTS = {"labels", "logits", "features", "loss_reduction"}


def check_logits(logits: Any, dimension: int) -> Any:
    """Logits as float32, with `dimension` values an example."""
    logits = tf.cast(logits, tf.float32)
    shape = logits.shape
    if shape.rank is not None and (shape.rank < 2 or shape[-1] not in (None, dimension)):
        raise BadValue(f"The logits have shape {shape}.", f"The head needs [..., {dimension}].")
    return logits


def match_labels(labels: Any, logits: Any, dimension: int) -> Any:
    """Labels of shape [..., `dimension`], for logits of the same leading shape."""
    if labels is None:
        raise BadValue("The head was given no labels.", "Let input_fn return (features, labels).")
    labels = v1.convert_to_tensor_or_sparse_tensor(labels)
    if isinstance(labels, tf.SparseTensor):
        raise BadValue(
            "The labels are a SparseTensor.",
            f"Give a Tensor of shape [batch, {dimension}], e.g. by tf.sparse.to_dense.",
        )
    if (
        labels.shape.rank is not None
        and logits.shape.rank is not None
        and labels.shape.rank == logits.shape.rank - 1
    ):
        labels = tf.expand_dims(labels, -1)
    if labels.shape.rank is not None and (labels.shape.rank < 2 or labels.shape[-1] not in (None, dimension)):
        raise BadValue(
            f"The labels have shape {labels.shape}.",
            f"The head needs [batch, {dimension}]; see n_classes or label_dimension.",
        )
    expected = tf.concat([tf.shape(logits)[:-1], [dimension]], axis=0)
    message = f"Labels must have the shape of the logits, with {dimension} at the end"
    check = v1.debugging.assert_equal(expected, tf.shape(labels), message=message)
    with tf.control_dependencies([check]):
        return tf.identity(labels)


def check_range(labels: Any, num_classes: int) -> Any:
    """Labels with an assertion, which runs with each batch, that they lie in [0, `num_classes`)."""
    most = tf.cast(num_classes - 1, labels.dtype)
    below = v1.debugging.assert_less_equal(labels, most, message=f"Labels must be <= {num_classes} - 1")
    above = v1.debugging.assert_non_negative(labels, message="Labels must be >= 0")
    with tf.control_dependencies([below, above]):
        return tf.identity(labels)


def as_column(weight_column: Any) -> Any:
    """The column of weights, which may be given by the name of its feature."""
    column = (
        tf.feature_column.numeric_column(weight_column) if isinstance(weight_column, str) else weight_column
    )
    if not hasattr(column, "normalizer_fn"):
        raise BadType(
            f"weight_column is a {type(weight_column).__name__}.",
            "Give the name of a feature or a numeric_column.",
        )
    return column


def read_weights(features: Any, weight_column: Any, logits: Any, per_logit: bool = False) -> Any:
    """Weights of shape [..., 1], also [..., logits] where `per_logit`; 1.0 without a weight column."""
    if weight_column is None:
        return 1.0
    column = as_column(weight_column)
    if not isinstance(features, Mapping) or column.key not in features:
        have = ", ".join(map(str, features)) if isinstance(features, Mapping) else type(features).__name__
        raise BadValue(
            f"The features have no weight column '{column.key}'; they are: {have}.", "Add it in input_fn."
        )
    weights = tf.cast(features[column.key], tf.float32)
    if column.normalizer_fn is not None:
        weights = column.normalizer_fn(weights)
    if (
        weights.shape.rank is not None
        and logits.shape.rank is not None
        and weights.shape.rank == logits.shape.rank - 1
    ):
        weights = tf.expand_dims(weights, -1)
    leading, size = tf.shape(logits)[:-1], tf.shape(weights)
    fits = tf.reduce_all(tf.equal(tf.concat([leading, [1]], axis=0), size))
    if per_logit:
        fits = tf.logical_or(fits, tf.reduce_all(tf.equal(tf.shape(logits), size)))
    with tf.control_dependencies(
        [tf.debugging.Assert(fits, ["Weights must have one value an example; shape:", size])]
    ):
        return tf.identity(weights)


def check_loss_fn(loss_fn: Any) -> None:
    """Refuses a loss function that needs arguments which a head does not have."""
    if loss_fn is None:
        return
    names = set(argument_names(loss_fn))
    if not {"labels", "logits"} <= names or names - _LOSS_FN_ARGUMENTS:
        raise BadValue(
            f"loss_fn takes {', '.join(sorted(names)) or 'nothing'}.",
            "It must take labels and logits, and may take features and loss_reduction.",
        )


def call_loss_fn(loss_fn: Callable[..., Any], labels: Any, logits: Any, features: Any, dimension: int) -> Any:
    """A loss of shape [..., `dimension`] from a function of the user's."""
    more = {"features": features} if "features" in argument_names(loss_fn) else {}
    loss = loss_fn(labels=labels, logits=logits, **more)
    expected = tf.concat([tf.shape(logits)[:-1], [dimension]], axis=0)
    message = f"loss_fn must return the shape of the logits, with {dimension} at the end"
    with tf.control_dependencies([v1.debugging.assert_equal(expected, tf.shape(loss), message=message)]):
        return tf.identity(loss)


def all_class_ids(logits: Any, num_classes: int) -> Any:
    """The numbers of all classes, for every example."""
    return tf.tile(tf.expand_dims(tf.range(num_classes), 0), [tf.shape(logits)[0], 1])


def all_classes(logits: Any, num_classes: int, vocabulary: Any) -> Any:
    """The names of all classes, for every example; numbers as strings without a vocabulary."""
    names = (
        tf.constant([list(vocabulary)])
        if vocabulary
        else tf.strings.as_string(tf.expand_dims(tf.range(num_classes), 0))
    )
    return tf.tile(names, [tf.shape(logits)[0], 1])


def class_ids_of(labels: Any, vocabulary: Any) -> Any:
    """Numbers of classes that are given by name; a name that is not in the vocabulary becomes -1."""
    keys = tf.constant(list(vocabulary))
    numbers = tf.range(len(vocabulary), dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, numbers), default_value=-1)
    return table.lookup(labels)


def classes_of(class_ids: Any, vocabulary: Any) -> Any:
    """Names of classes; their numbers as strings without a vocabulary."""
    if not vocabulary:
        return tf.strings.as_string(class_ids)
    return tf.gather(tf.constant(list(vocabulary)), class_ids)
