"""Metrics that Cerebras's model functions hand over as a host call, for the host to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.bad_input import BadType, BadValue

HostCall = Sequence[Any] | Mapping[str, Any]


def validate_host_call(host_call: HostCall | None) -> HostCall:
    """Returns a host call that is well formed, and () for none.

    It is `(function, tensors)`, `(function, tensors, more)`, or a dict of metrics that are made already.
    """
    if not host_call:
        return ()
    if isinstance(host_call, Mapping):
        return host_call
    cure = "Give (function, [tensors]) or a dict of metrics."
    if not isinstance(host_call, (list, tuple)) or len(host_call) not in (2, 3):
        raise BadValue(f"host_call must be a pair, a triple or a dict; received {host_call!r}.", cure)
    if not callable(host_call[0]):
        raise BadValue(f"The first item of host_call must be callable; received {host_call[0]!r}.", cure)
    if not isinstance(host_call[1], (list, tuple, Mapping)):
        raise BadValue(
            f"The second item of host_call must be a list of tensors; received {host_call[1]!r}.", cure
        )
    if len(host_call) == 3 and not isinstance(host_call[2], (list, tuple)):
        raise BadValue(f"The third item of host_call must be a list; received {host_call[2]!r}.", cure)
    return host_call


def host_call_to_eval_metric_ops(host_call: HostCall | None) -> dict[str, tuple[Any, Any]]:
    """Calls the host call's function, and keeps of what it returns the pairs (value, update)."""
    checked = validate_host_call(host_call)
    if not checked:
        return {}
    made = dict(checked) if isinstance(checked, Mapping) else _call(checked[0], checked[1])
    if isinstance(made, (list, tuple)):
        made = {f"elem_{index}": metric for index, metric in enumerate(made)}
    if not isinstance(made, Mapping):
        raise BadType(
            f"The function of host_call returned {made!r}.", "Return a dict of (value, update) pairs by name."
        )
    return {name: _as_pair(metric) for name, metric in made.items() if _is_metric(metric)}


def _call(function: Callable[..., Any], tensors: Sequence[Any] | Mapping[str, Any]) -> Any:
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _is_metric(metric: Any) -> bool:
    if isinstance(metric, tf.keras.metrics.Metric):
        return True
    return isinstance(metric, (list, tuple)) and len(metric) == 2 and tf.is_tensor(metric[0])


def _as_pair(metric: Any) -> Any:
    return metric if isinstance(metric, tf.keras.metrics.Metric) else tuple(metric)
