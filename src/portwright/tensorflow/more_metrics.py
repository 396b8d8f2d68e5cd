"""Adds metrics to an Estimator that exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portwright.tensorflow.arguments import BadType, BadValue, argument_names, call_with
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys

_ARGUMENTS = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """Returns an Estimator with the same model_dir whose evaluations also report the metrics of `metric_fn`.

    `metric_fn` may take features, labels, predictions and config; its metrics replace those of the same name.
    """
    if not isinstance(estimator, Estimator):
        raise BadType(f"estimator is a {type(estimator).__name__}.", "Give an Estimator.")
    if not callable(metric_fn):
        raise BadType(f"metric_fn is {metric_fn!r}.", "Give a function that returns metrics by name.")
    if unknown := [name for name in argument_names(metric_fn) if name not in _ARGUMENTS]:
        raise BadValue(f"metric_fn takes {', '.join(unknown)}.", f"It may take {', '.join(_ARGUMENTS)}.")

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        offered = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **call_with(metric_fn, offered)})

    return Estimator(
        model_fn, estimator.model_dir, estimator.config, warm_start_from=estimator._warm_start_settings
    )
