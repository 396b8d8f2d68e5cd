"""What every model_fn ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.optimizers import make_train_op
from portwright.tensorflow.spec import CSEstimatorSpec


def make_spec(
    mode: str,
    params: Mapping[str, Any],
    *,
    predictions: Any = None,
    loss: Any = None,
    host_call: Any = None,
) -> CSEstimatorSpec:
    """The spec of a mode: the loss with what trains it, or with its metrics, or predictions alone."""
    if mode == ModeKeys.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions=predictions)
    if mode == ModeKeys.TRAIN:
        return CSEstimatorSpec(mode=mode, loss=loss, train_op=make_train_op(loss, params["optimizer"]))
    return CSEstimatorSpec(mode=mode, loss=loss, host_call=host_call)
