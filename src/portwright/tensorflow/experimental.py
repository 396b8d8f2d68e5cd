"""The public names of `tf.estimator.experimental`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.argument_names import call_with
from portwright.tensorflow.bad_input import BadType, BadValue
from portwright.tensorflow.canned.networks import Dnn, Linear
from portwright.tensorflow.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from portwright.tensorflow.in_memory_evaluator import InMemoryEvaluatorHook
from portwright.tensorflow.serving import build_raw_supervised_input_receiver_fn

__all__ = [
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Calls `logit_fn` with those of the arguments that it takes, and checks that it gives logits."""
    logits = call_with(logit_fn, {"features": features, "mode": mode, "params": params, "config": config})
    if isinstance(logits, dict):
        if wrong := [name for name, value in logits.items() if not tf.is_tensor(value)]:
            raise BadType(
                f"logit_fn gave no tensor under {', '.join(map(str, wrong))}.", "Give tensors by name."
            )
    elif not tf.is_tensor(logits):
        raise BadType(f"logit_fn gave a {type(logits).__name__}.", "Give a tensor or a dict of tensors.")
    return logits


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Any,
    activation_fn: Callable[[Any], Any],
    dropout: float | None,
    input_layer_partitioner: Any,
    batch_norm: bool,
) -> Callable[[Any, str], Any]:
    """A function of features and mode that gives the logits of fully connected layers."""
    if isinstance(units, bool) or not isinstance(units, int):
        raise BadValue(f"units is {units!r}.", "Give a whole number.")
    dnn = Dnn(hidden_units, list(feature_columns), activation_fn, dropout, batch_norm)

    def dnn_logit_fn(features: Any, mode: str) -> Any:
        return dnn.v1_logits(features, mode, units, input_layer_partitioner)

    return dnn_logit_fn


def linear_logit_fn_builder(
    units: int, feature_columns: Any, sparse_combiner: str = "sum"
) -> Callable[[Any], Any]:
    """A function of features that gives the logits of a linear model."""
    linear = Linear(list(feature_columns), sparse_combiner)

    def linear_logit_fn(features: Any) -> Any:
        return linear.logits(features, units).values

    return linear_logit_fn
