"""The loss, metrics and update of Keras's `compile` and `fit`, as parts of a model_fn.

The numbers are Keras's: labels are matched to outputs as in Keras, losses are means over all elements, and the optimizers
are tf.keras's own, which add epsilon in another place than torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_keras.src.losses import LossFunctionWrapper  # type: ignore[import-untyped]

from portwright.errors import UnsupportedError, UserError, suggest
from portwright.job import optimizer as job
from portwright.tensorflow import optimizer_rules, optimizers
from portwright.tensorflow.gradients import as_dense, clip_gradients, values_of
from portwright.tensorflow.schedules import make_learning_rate

v1 = tf.compat.v1


def compute_loss(
    losses: Any, labels: Any, outputs: Any, model: Any = None, *, loss_weights: Any = None
) -> tf.Tensor:
    """The loss that `model.compile(loss=losses, loss_weights=...)` and `fit` compute of a batch.

    A loss is a name, an object of tf.keras.losses or a function of (y_true, y_pred); for several outputs a list or dict of
    these, as Keras takes it. The losses that layers of `model` add, as regularizers do, are part of it.
    """
    names = list(getattr(model, "output_names", None) or [])
    parts = []
    for loss, label, output, weight in _pairs(losses, labels, outputs, loss_weights, names):
        value = _as_loss(loss)(*_match(label, output))
        parts.append(value if weight is None else value * tf.cast(weight, value.dtype))
    added = [tf.cast(value, tf.float32) for value in getattr(model, "losses", None) or ()]
    return tf.add_n([*(tf.cast(part, tf.float32) for part in parts), *added])


def name_outputs(model: Any, outputs: Any) -> Any:
    """A model's outputs by their names where it has several, as Keras names them; one output as it is."""
    if not isinstance(outputs, (list, tuple)):
        return outputs
    if len(outputs) == 1:
        return outputs[0]
    names = list(getattr(model, "output_names", None) or [])
    if len(names) != len(outputs):  # a subclassed model has no names before Keras trains it
        names = [f"output_{number}" for number in range(1, len(outputs) + 1)]
    return dict(zip(names, outputs, strict=True))


def compute_metrics(metrics: Any, labels: Any, outputs: Any) -> dict[str, tuple[Any, Any]]:
    """The metrics of `compile(metrics=...)` as tf.compat.v1 metrics, for host_call or eval_metric_ops.

    Several outputs are what `name_outputs` gives; the names of their metrics begin with the output's, as in Keras.
    """
    if metrics is None:
        return {}
    if isinstance(outputs, (list, tuple)):
        outputs = name_outputs(None, outputs)
    if isinstance(outputs, Mapping):
        rows = _metrics_by_output(metrics, labels, outputs)
    else:
        listed = next(iter(metrics.values()), []) if isinstance(metrics, Mapping) else metrics
        if isinstance(listed, (list, tuple)) and len(listed) == 1 and isinstance(listed[0], (list, tuple)):
            listed = listed[0]
        rows = [("", listed, tf.nest.flatten(labels)[0], outputs)]
    found: dict[str, tuple[Any, Any]] = {}
    for name_of_output, listed, label, output in rows:
        for metric in listed if isinstance(listed, (list, tuple)) else [listed]:
            name, made = _make_metric(metric, *_match(label, output))
            if isinstance(outputs, Mapping) and len(outputs) > 1:
                name = f"{name_of_output}_{name}"
            while name in found:
                name += "_"
            found[name] = made
    return found


def _metrics_by_output(
    metrics: Any, labels: Any, outputs: Mapping[str, Any]
) -> list[tuple[str, Any, Any, Any]]:
    """Each output's name, metrics, label and value; as in Keras, a list of metrics without inner lists is for all outputs."""
    names = list(outputs)
    if isinstance(metrics, (list, tuple)) and not any(isinstance(m, (list, tuple)) for m in metrics):
        metrics = [metrics] * len(names)
    return [
        (name, listed, label, output)
        for listed, label, output, name in _pairs(metrics, labels, outputs, names, names, what="metrics")
        if label is not None
    ]


def make_train_op(loss: Any, params: Mapping[str, Any]) -> tf.Operation:
    """One update of all trainable variables as tf.keras makes it, from the `optimizer` section of params.yaml."""
    schemas = {known.lower(): schema for known, schema in job.OPTIMIZERS.items()}
    kind = str(params.get("optimizer_type", "")).lower()
    if kind not in _KERAS or kind not in schemas:
        known = [schemas[k].__name__.removesuffix("Params") for k in _KERAS]
        raise UserError(
            f"optimizer.optimizer_type is {params.get('optimizer_type')!r}, which tf.keras has not.",
            suggest(kind, known),
        )
    spec = schemas[kind].model_validate(dict(params))
    has_decay = kind == "adamw" and spec.weight_decay_rate
    if (
        (spec.weight_decay_rate and not has_decay)
        or spec.loss_scaling_factor != 1.0
        or spec.grad_accum_steps != 1
    ):
        return optimizers.make_train_op(loss, params)  # Keras has no arguments for these settings
    step = v1.train.get_or_create_global_step()
    variables = v1.trainable_variables()
    gradients = tf.gradients(loss, variables)
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    if not pairs:
        raise UserError("The loss depends on no trainable variable.", "Look at what build_model returns.")
    clipped = _clip([g for g, _ in pairs], spec)
    trained = [v for _, v in pairs]
    rate = (
        spec.learning_rate
        if isinstance(spec.learning_rate, float)
        else make_learning_rate(spec.learning_rate, step)
    )
    decays = []
    if has_decay:
        with tf.control_dependencies([values_of(g) for g in clipped]):
            decays = [
                v.assign_sub(v * tf.cast(spec.weight_decay_rate * rate, v.dtype.base_dtype)) for v in trained
            ]
    with tf.control_dependencies(decays):
        return tf.group(
            _apply(spec, kind, rate, list(zip(clipped, trained, strict=True)), step), name="train_op"
        )


def _clip(gradients: list[Any], spec: Any) -> list[Any]:
    if spec.max_gradient_value is None and spec.max_gradient_norm is not None:
        clipped: list[Any] = tf.clip_by_global_norm(gradients, spec.max_gradient_norm)[0]
        return clipped
    return clip_gradients(gradients, None, spec.max_gradient_value, None)


def _apply(spec: Any, kind: str, rate: Any, pairs: list[tuple[Any, Any]], step: Any) -> Any:
    class_name, keys = _KERAS[kind]
    options = {theirs: getattr(spec, ours) for theirs, ours in keys.items()}
    if kind in ("rmsprop", "adagrad"):
        rule: Any = RMSprop if kind == "rmsprop" else Adagrad
        return rule(rate, **options).apply_gradients(pairs, global_step=step)
    # The other legacy optimizers update only the rows of a sparse gradient, although momentum moves all rows.
    if kind != "adam":
        pairs = [(as_dense(g, v.shape[0]), v) for g, v in pairs]
    optimizer = getattr(tf.keras.optimizers.legacy, class_name)(
        learning_rate=rate if isinstance(rate, float) else lambda: rate, **options
    )
    optimizer.iterations = step
    return optimizer.apply_gradients(pairs)


_MOMENTS = {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "eps"}
# Name in params.yaml: the class of tf.keras, and {its argument: our key}.
_KERAS: dict[str, tuple[str, dict[str, str]]] = {
    "sgd": ("SGD", {"momentum": "momentum", "nesterov": "use_nesterov"}),
    "adam": ("Adam", {**_MOMENTS, "amsgrad": "amsgrad"}),
    "adamw": ("Adam", {**_MOMENTS, "amsgrad": "amsgrad"}),
    "rmsprop": ("RMSprop", {name: name for name in ("alpha", "momentum", "eps", "centered")}),
    "adagrad": ("Adagrad", {name: name for name in ("initial_accumulator_value", "eps")}),
    "adadelta": ("Adadelta", {"rho": "rho", "epsilon": "eps"}),
    "adamax": ("Adamax", _MOMENTS),
}


_SHORT = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
    "bce": "binary_crossentropy",
    "huber_loss": "huber",
}


def _as_loss(loss: Any) -> Any:
    if not isinstance(loss, str) and not callable(loss):
        raise UserError(f"the loss is {loss!r}.", "Give a name, an object of tf.keras.losses or a function.")
    try:
        found = tf.keras.losses.get(_SHORT.get(loss.lower(), loss) if isinstance(loss, str) else loss)
    except ValueError as error:
        raise UserError(
            f"tf.keras has no loss '{loss}'.", suggest(str(loss), [*dir(tf.keras.losses), *_SHORT])
        ) from error
    # As Keras does: the mean of a function's values.
    return found if isinstance(found, tf.keras.losses.Loss) else LossFunctionWrapper(found)


def _match(label: Any, output: Any) -> tuple[Any, Any]:
    """Casts labels to the outputs' dtype if both are floats or both integers; adds a dimension to labels where outputs have two."""
    if tf.is_tensor(label) and label.shape.rank == 1 and output.shape.rank == 2:
        label = tf.expand_dims(label, -1)
    both = (label.dtype.is_floating and output.dtype.is_floating) or (
        label.dtype.is_integer and output.dtype.is_integer
    )
    return (tf.cast(label, output.dtype) if both else label), output


def _pairs(
    losses: Any, labels: Any, outputs: Any, weights: Any, names: Sequence[str], *, what: str = "loss"
) -> list[tuple[Any, Any, Any, Any]]:
    """Each output with its item of `losses`, its label and its weight; `what` names the items in errors."""
    if not tf.nest.is_nested(outputs):
        one = [
            tf.nest.flatten(value)[0] if tf.nest.is_nested(value) else value
            for value in (losses, labels, weights)
        ]
        return [(one[0], one[1], outputs, one[2])]
    keys = (
        list(outputs)
        if isinstance(outputs, Mapping)
        else list(names) or [str(i) for i in range(len(outputs))]
    )
    values = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)

    def of(given: Any, kind: str) -> list[Any]:
        if given is None or isinstance(given, str) or not isinstance(given, (Mapping, list, tuple)):
            return [given] * len(values)
        if isinstance(given, Mapping):
            by_place = {f"output_{i}": key for i, key in enumerate(keys)}
            known = {key if key in keys else by_place.get(key, key): value for key, value in given.items()}
            strange = [key for key in known if key not in keys]
            if strange:
                raise UserError(f"{kind} names the output '{strange[0]}'.", suggest(str(strange[0]), keys))
            return [known.get(key) for key in keys]
        if len(given) != len(values):
            raise UserError(
                f"{kind} has {len(given)} entries, and the model {len(values)} outputs.",
                "Give one for each output.",
            )
        return list(given)

    rows = zip(of(losses, what), of(labels, "the labels"), values, of(weights, "loss_weights"), strict=True)
    return [row for row in rows if row[0] is not None]


def _make_metric(metric: Any, label: Any, output: Any) -> tuple[Any, Any]:
    metrics = v1.metrics
    if isinstance(metric, str):
        name = metric.lower()
        if name in ("accuracy", "acc"):
            return metric, _accuracy(label, output)
        long = _SHORT.get(name, name)
        for namespace in (tf.keras.metrics, tf.keras.losses):
            function = getattr(namespace, long, None)
            if callable(function) and not isinstance(function, type):
                return metric, metrics.mean(function(label, output))
        classes = {n.lower(): n for n in dir(tf.keras.metrics) if n[:1].isupper()}
        if name.replace("_", "") not in classes:
            raise UserError(f"tf.keras has no metric '{metric}'.", suggest(metric, classes.values()))
        metric = getattr(tf.keras.metrics, classes[name.replace("_", "")])()
    if isinstance(metric, type):
        metric = metric()
    kind, name = type(metric).__name__, getattr(metric, "name", type(metric).__name__)
    if kind == "AUC":
        return name, metrics.auc(label > 0 if label.dtype != tf.bool else label, output)
    if kind in ("Precision", "Recall") and metric.thresholds in (None, [0.5]) and metric.top_k is None:
        return name, getattr(metrics, kind.lower())(tf.cast(label, tf.bool), output > 0.5)
    if kind == "RootMeanSquaredError":
        return name, metrics.root_mean_squared_error(tf.cast(label, output.dtype), output)
    function = getattr(metric, "_fn", None)  # the function whose mean the metric is
    if function is not None:
        return name, metrics.mean(function(label, output, **getattr(metric, "_fn_kwargs", {})))
    if callable(metric) and not isinstance(metric, tf.keras.metrics.Metric):
        return getattr(metric, "__name__", "metric"), metrics.mean(metric(label, output))
    raise UnsupportedError(
        f"the metric {kind} of tf.keras has no form in a graph here.",
        "Write it in metrics_fn with tf.compat.v1.metrics.",
    )


def _accuracy(label: Any, output: Any) -> Any:
    """The accuracy that Keras chooses by the shapes of labels and outputs."""
    if output.shape[-1] == 1 or output.shape.rank == 1:
        return v1.metrics.accuracy(tf.cast(label, tf.int32), tf.cast(output > 0.5, tf.int32))
    classes = tf.argmax(output, axis=-1)
    if label.shape.rank == output.shape.rank and label.shape[-1] not in (1, None):
        return v1.metrics.accuracy(tf.argmax(label, axis=-1), classes)
    if label.shape.rank == output.shape.rank:
        label = tf.squeeze(label, -1)
    return v1.metrics.accuracy(tf.cast(label, tf.int64), classes)


class RMSprop(optimizer_rules.RMSprop):
    """Keras's: epsilon is added inside the root, and the rate enters the momentum."""

    slot_names = ("velocity", "momentum", "average")

    def _move(self, gradient: Any, variable: Any) -> Any:
        rate = tf.cast(self._lr_t, gradient.dtype)
        step = rate * gradient * tf.math.rsqrt(self._spread(gradient, variable) + self.eps)
        return v1.assign_sub(variable, self._with_momentum(step, variable))


class Adagrad(optimizer_rules.Adagrad):
    """Keras's: epsilon is added inside the root."""

    takes_sparse = False

    def _step_of(self, gradient: Any, total: Any) -> Any:
        return tf.cast(self._lr_t, total.dtype) * gradient / tf.sqrt(total + self.eps)
