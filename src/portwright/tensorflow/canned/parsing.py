"""Parsing specs of tf.Examples for a ready-made model: the features of its columns, the label and the weight."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.canned.head_inputs import as_column
from portwright.tensorflow.canned.networks import check_columns


def classifier_parse_example_spec(
    feature_columns: Any,
    label_key: str,
    label_dtype: Any = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """The spec for tf.io.parse_example of a classifier: one label an example."""
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Any,
    label_key: str,
    label_dtype: Any = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """The spec for tf.io.parse_example of a regressor: `label_dimension` numbers an example."""
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def _parse_spec(feature_columns: Any, label_key: str, label: Any, weight_column: Any) -> dict[str, Any]:
    if not label_key:
        raise BadValue(f"label_key is {label_key!r}.", "Give the name of the label.")
    spec: dict[str, Any] = tf.feature_column.make_parse_example_spec(check_columns(feature_columns))
    if label_key in spec:
        raise BadValue(f"The label '{label_key}' is also a feature.", "Give it a name of its own.")
    spec[label_key] = label
    if weight_column is None:
        return spec
    column = as_column(weight_column)
    if column.key in spec:
        raise BadValue(
            f"The weight '{column.key}' is also a feature or the label.", "Give it a name of its own."
        )
    return {**spec, **tf.feature_column.make_parse_example_spec([column])}
