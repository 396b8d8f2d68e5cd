"""What a model function returns: the tensors and ops of one mode, checked."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import Self

from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.mode_keys import ModeKeys

HostCall = Sequence[Any] | Mapping[str, Any]


def validate_host_call(host_call: HostCall | None) -> HostCall:
    """Checks a host call and returns it, or () for none.

    It is `(function, tensors)`, `(function, tensors, more)`, or a dict of finished metrics.
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
    made = dict(checked) if isinstance(checked, Mapping) else call_pair(checked[0], checked[1])
    if isinstance(made, (list, tuple)):
        made = {f"elem_{index}": metric for index, metric in enumerate(made)}
    if not isinstance(made, Mapping):
        raise BadType(
            f"The function of host_call returned {made!r}.", "Return a dict of (value, update) pairs by name."
        )
    return {
        name: metric if isinstance(metric, tf.keras.metrics.Metric) else tuple(metric)
        for name, metric in made.items()
        if _is_metric(metric)
    }


def call_pair(function: Callable[..., Any], tensors: Sequence[Any] | Mapping[str, Any]) -> Any:
    """Calls a function with tensors that were given in order, or by name."""
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _is_metric(metric: Any) -> bool:
    if isinstance(metric, tf.keras.metrics.Metric):
        return True
    return isinstance(metric, (list, tuple)) and len(metric) == 2 and tf.is_tensor(metric[0])


_Fields = namedtuple(
    "_Fields",
    [
        "mode",
        "predictions",
        "loss",
        "train_op",
        "eval_metric_ops",
        "export_outputs",
        "training_chief_hooks",
        "training_hooks",
        "scaffold",
        "evaluation_hooks",
        "prediction_hooks",
    ],
)


class EstimatorSpec(_Fields):
    """The tensors and ops that an Estimator runs in one mode; those that do not fit the mode are refused here.

    Metrics may come as a host call instead, `(function, [tensors])` or a dict of metrics; they are made for mode EVAL.
    """

    host_call: Any = None

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: dict[str, Any] | None = None,
        export_outputs: dict[str, Any] | None = None,
        training_chief_hooks: Any = None,
        training_hooks: Any = None,
        scaffold: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
        host_call: Any = None,
    ) -> Self:
        if validate_host_call(host_call):
            if eval_metric_ops:
                raise BadValue("Both host_call and eval_metric_ops were given.", "Give one of them.")
            if mode == ModeKeys.EVAL:
                eval_metric_ops = host_call_to_eval_metric_ops(host_call)
        predictions_checked = check_predictions(predictions, mode)
        spec = super().__new__(
            cls,
            mode,
            predictions_checked,
            check_loss(loss, mode),
            check_train_op(train_op, mode),
            check_eval_metric_ops(eval_metric_ops),
            check_export_outputs(export_outputs, predictions_checked, mode),
            check_hooks(training_chief_hooks, "training_chief_hooks"),
            check_hooks(training_hooks, "training_hooks"),
            check_scaffold(scaffold),
            check_hooks(evaluation_hooks, "evaluation_hooks"),
            check_hooks(prediction_hooks, "prediction_hooks"),
        )
        spec.host_call = host_call or None
        return spec

    def _replace(self, **kwds: Any) -> EstimatorSpec:
        if kwds.get("mode", self.mode) != self.mode:
            raise BadValue(
                f"The mode of an EstimatorSpec cannot change from {self.mode!r} to {kwds['mode']!r}.",
                "Make a new EstimatorSpec.",
            )
        unknown = sorted(set(kwds) - set(self._fields))
        if unknown:
            raise BadValue(f"EstimatorSpec has no field {unknown}.", f"Fields: {', '.join(self._fields)}.")
        return EstimatorSpec(**{**self._asdict(), **kwds})


class CSEstimatorSpec(EstimatorSpec):
    """An EstimatorSpec whose second argument is the host call."""

    def __new__(cls, mode: str, host_call: Any = None, **kwargs: Any) -> Self:
        return super().__new__(cls, mode, host_call=host_call, **kwargs)


def check_train_op(train_op: Any, mode: str) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise BadValue("The EstimatorSpec has no train_op.", "In mode 'train' give one.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, tf.Operation) and not tf.is_tensor(train_op):
        raise BadType(f"train_op must be an operation or a tensor; received {train_op!r}.")
    _check_graph(train_op, "train_op")
    return train_op


def check_loss(loss: Any, mode: str) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise BadValue("The EstimatorSpec has no loss.", f"In mode {mode!r} give one.")
        return None
    if not _is_tensor(loss):
        raise BadType(f"loss must be a tensor; received {loss!r}.")
    if loss.shape.num_elements() not in (None, 1):
        raise BadValue(f"loss must be one number; received {loss!r}.", "Take its mean or sum.")
    _check_graph(loss, "loss")
    return loss if loss.shape.is_compatible_with(tf.TensorShape([])) else tf.reshape(loss, [])


def check_predictions(predictions: Any, mode: str) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise BadValue(
                "The EstimatorSpec has no predictions.", "In mode 'infer' give a tensor or a dict."
            )
        return {}
    named = predictions if isinstance(predictions, dict) else {"": predictions}
    for key, value in named.items():
        label = f"predictions[{key!r}]" if isinstance(predictions, dict) else "predictions"
        if not _is_tensor(value):
            raise BadType(f"{label} must be a tensor; received {value!r}.")
        _check_graph(value, label)
    return dict(predictions) if isinstance(predictions, dict) else predictions


def check_export_outputs(export_outputs: Any, predictions: Any, mode: str) -> Any:
    if mode != ModeKeys.PREDICT:
        return export_outputs
    from tensorflow.python.saved_model.model_utils.export_utils import get_export_outputs

    return get_export_outputs(export_outputs, predictions)


def check_hooks(hooks: Any, label: str = "hooks") -> tuple[Any, ...]:
    found = tuple(hooks or ())
    for hook in found:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise BadType(f"{label} must hold SessionRunHook objects; received {hook!r}.")
    return found


def check_eval_metric_ops(eval_metric_ops: Any) -> dict[str, tuple[Any, Any]]:
    if eval_metric_ops is None:
        return {}
    if not isinstance(eval_metric_ops, dict):
        raise BadType(f"eval_metric_ops must be a dict; received {eval_metric_ops!r}.")
    checked: dict[str, tuple[Any, Any]] = {}
    for key, metric in eval_metric_ops.items():
        if isinstance(metric, tf.keras.metrics.Metric):
            checked[key] = _metric_of_keras(metric)
        elif isinstance(metric, tuple) and len(metric) == 2:
            checked[key] = metric
        else:
            raise BadType(
                f"eval_metric_ops[{key!r}] must be a pair (value, update); received {metric!r}.",
                "tf.compat.v1.metrics functions return such pairs.",
            )
        for item in tf.nest.flatten(checked[key]):
            _check_graph(item, f"eval_metric_ops[{key!r}]")
    return checked


def check_scaffold(scaffold: Any) -> Any:
    if scaffold is None:
        return tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise BadType(f"scaffold must be a tf.compat.v1.train.Scaffold; received {scaffold!r}.")
    return scaffold


def _metric_of_keras(metric: Any) -> tuple[Any, Any]:
    if not metric.updates:
        raise BadValue(
            f"The metric {metric.name!r} was never updated.", "Call its update_state(...) in model_fn."
        )
    for update in metric.updates:
        _check_graph(update, f"the update of metric {metric.name!r}")
    # Keras adds its variables to no collection, so that no session would initialise them.
    for collection in (tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.METRIC_VARIABLES):
        known = {id(variable) for variable in tf.compat.v1.get_collection(collection)}
        for variable in metric.variables:
            if id(variable) not in known:
                tf.compat.v1.add_to_collection(collection, variable)
    return metric.result(), metric.updates[0]


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) and not isinstance(value, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices))


def _check_graph(value: Any, label: str) -> None:
    graph = getattr(value, "graph", None)
    if graph is not None and graph is not tf.compat.v1.get_default_graph():
        raise BadValue(
            f"{label} ({getattr(value, 'name', value)!r}) is of another graph.",
            "Make it inside model_fn, in the call that returns it: each mode has a graph of its own.",
        )
