"""Small parts of tensorflow_estimator that have no place of their own in portwright.tensorflow."""

from __future__ import annotations

from typing import Any

VERSION = "2.15.0"  # the last release, whose names are lent


class TaskType:
    """The roles that TF_CONFIG may give a process."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


def keras_model_to_estimator(*args: Any, **kwargs: Any) -> Any:
    """tf.keras.estimator.model_to_estimator, which passes whether the optimizer is one of tf.keras' version 2."""
    from portwright.tensorflow.keras_model import model_to_estimator

    kwargs.pop("use_v2_estimator", None)
    return model_to_estimator(*args, **kwargs)
