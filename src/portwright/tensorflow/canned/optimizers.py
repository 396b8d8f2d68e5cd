"""Optimizers by name, instance or function: Keras's legacy ones for tf.estimator, TensorFlow 1's for tf.compat.v1.estimator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue

v1 = tf.compat.v1
legacy = tf.keras.optimizers.legacy

KERAS = {
    "Adagrad": legacy.Adagrad,
    "Adam": legacy.Adam,
    "Ftrl": legacy.Ftrl,
    "RMSProp": legacy.RMSprop,
    "SGD": legacy.SGD,
}
V1 = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


def keras_optimizer(given: Any, learning_rate: float | None = None) -> Any:
    """An optimizer for one graph; `learning_rate` is for one given by name, None is its own default."""
    if isinstance(given, str):
        make = _by_name(given, KERAS)
        return make() if learning_rate is None else make(learning_rate=learning_rate)
    made = given() if callable(given) and not isinstance(given, tf.Module) else given
    if isinstance(made, legacy.Optimizer):
        # A copy: an instance that has trained already has its variables in another graph.
        return made if made._iterations is None else type(made).from_config(made.get_config())
    cure = "Give one of tf.keras.optimizers.legacy, or a name."
    if isinstance(made, v1.train.Optimizer):
        cure = f"{cure} The estimators in portwright.tensorflow.canned.v1 take those of tf.compat.v1.train."
    raise BadType(f"The optimizer is a {type(made).__name__}.", cure)


def v1_optimizer(given: Any, learning_rate: float) -> Any:
    """As `keras_optimizer`, for optimizers of tf.compat.v1.train."""
    if isinstance(given, str):
        return _by_name(given, V1)(learning_rate=learning_rate)
    made = given() if callable(given) else given
    if isinstance(made, v1.train.Optimizer):
        return made
    raise BadType(f"The optimizer is a {type(made).__name__}.", "Give one of tf.compat.v1.train, or a name.")


def _by_name(name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise BadValue(f"There is no optimizer '{name}'.", suggest(name, known))
    return known[name]
