"""An Estimator from a compiled Keras model: with its layers, loss, metrics and optimizer, starting from its weights."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model.model_utils.export_output import PredictOutput

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.run_config import RunConfig
from portwright.tensorflow.spec import EstimatorSpec

v1 = tf.compat.v1

_FORMATS = ("checkpoint", "saver")
_DEFAULT_KEY: str = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: Any = None,
    config: RunConfig | None = None,
    checkpoint_format: str = "checkpoint",
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Mapping[str, Any] | None = None,
) -> Estimator:
    """Makes an Estimator that trains a copy of a functional or sequential model, beginning with its present weights.

    Features are a tensor, a list, or a dict by the names of the inputs; labels likewise by those of the outputs.
    `checkpoint_format` says how variables are named in checkpoints: as the objects they belong to, or by name (`saver`).
    """
    if (keras_model is None) == (keras_model_path is None):
        given = (
            "Neither keras_model nor keras_model_path was given."
            if keras_model is None
            else "Both were given."
        )
        raise BadValue(given, "Give keras_model or keras_model_path.")
    if checkpoint_format not in _FORMATS:
        raise BadValue(
            f"checkpoint_format is {checkpoint_format!r}.", suggest(str(checkpoint_format), _FORMATS)
        )
    if keras_model is None:
        with tf.keras.utils.custom_object_scope(dict(custom_objects or {})):
            keras_model = tf.keras.models.load_model(keras_model_path, safe_mode=True)
    _check(keras_model)
    by_object = checkpoint_format == "checkpoint"
    model_fn = _make_model_fn(keras_model, custom_objects, by_object, metric_names_map, export_outputs)
    weights = keras_model.get_weights()
    estimator = Estimator(model_fn, model_dir, config)
    start = _save_weights(estimator, keras_model, custom_objects, weights, by_object)
    return Estimator(model_fn, config=estimator.config, warm_start_from=start)


def _check(keras_model: Any) -> None:
    if not isinstance(keras_model, tf.keras.Model):
        raise BadType(
            f"keras_model is a {type(keras_model).__name__}.", "Give a model of tf.keras (tf_keras)."
        )
    if not keras_model._is_graph_network:
        raise BadValue(
            f"The model '{keras_model.name}' is a subclass of Model, or was not built yet.",
            "Make it of tf.keras.Input and layers, or give a Sequential its input shape.",
        )
    if not getattr(keras_model, "optimizer", None):
        raise BadValue(
            f"The model '{keras_model.name}' is not compiled.", "Call model.compile(optimizer, loss) first."
        )
    if not isinstance(keras_model.optimizer, tf.keras.optimizers.legacy.Optimizer):
        # Only the legacy optimizers run in a graph. A new one with the same settings loses nothing: it has no state yet.
        keras_model.optimizer = tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(
            keras_model.optimizer
        )


def _make_model_fn(
    keras_model: Any,
    custom_objects: Any,
    by_object: bool,
    metric_names: Mapping[str, str] | None,
    export_outputs: Mapping[str, Any] | None,
) -> Any:
    optimizer_config = keras_model.optimizer.get_config()

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        with _old_keras_calls():
            return build(features, labels, mode)

    def build(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        model = _copy(keras_model, custom_objects, mode, features, labels, optimizer_config)
        predictions = dict(zip(model.output_names, model.outputs, strict=True))
        outputs = _export_outputs(predictions, export_outputs)
        scaffold = v1.train.Scaffold(saver=_object_saver(model)) if by_object else None
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions, export_outputs=outputs, scaffold=scaffold)
        metrics = _metrics(model, metric_names)
        if mode == ModeKeys.EVAL:
            model._make_test_function()
            return EstimatorSpec(
                mode, predictions, model.total_loss, eval_metric_ops=metrics, scaffold=scaffold
            )
        model._make_train_function()
        if by_object:  # only now the optimizer has made its variables
            scaffold = v1.train.Scaffold(saver=_object_saver(model))
        train_op = model.train_function.updates_op
        # The step updates the metrics too; they are in the spec so that their variables are initialised.
        return EstimatorSpec(mode, predictions, model.total_loss, train_op, metrics, scaffold=scaffold)

    return model_fn


@contextlib.contextmanager
def _old_keras_calls() -> Iterator[None]:
    """Hides Keras's deprecation warnings for calls that a graph still needs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*set_learning_phase|.*state_updates")
        yield


def _copy(
    keras_model: Any, custom_objects: Any, mode: str, features: Any, labels: Any, optimizer_config: Any
) -> Any:
    tf.keras.backend.set_learning_phase(mode == ModeKeys.TRAIN)
    step = None
    if mode != ModeKeys.PREDICT:
        step = v1.train.get_or_create_global_step()
        tf.keras.__internal__.backend.track_variable(step)
    return tf.keras.__internal__.models.clone_and_build_model(
        keras_model,
        _in_order(features, keras_model.input_names, "features", "inputs"),
        _in_order(labels, keras_model.output_names, "labels", "outputs"),
        custom_objects,
        compile_clone=mode != ModeKeys.PREDICT,
        optimizer_iterations=step,
        optimizer_config=optimizer_config,
    )


def _in_order(given: Any, names: Sequence[str], what: str, of: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        if missing := [name for name in names if name not in given]:
            raise BadValue(
                f"The {what} lack {', '.join(missing)}, which are {of} of the model.",
                f"The {what} are: {', '.join(map(str, given))}.",
            )
        given = [given[name] for name in names]
    tensors = list(given) if isinstance(given, (list, tuple)) else [given]
    return [v1.convert_to_tensor_or_sparse_tensor(tensor) for tensor in tensors]


def _metrics(model: Any, names: Mapping[str, str] | None) -> dict[str, Any]:
    found = {metric.name: metric for metric in getattr(model, "_compile_metric_functions", ())}
    if names is None:
        return found
    if set(names) != set(found):
        raise BadValue(
            f"metric_names_map names {', '.join(sorted(names))}.",
            f"The model's metrics: {', '.join(sorted(found))}.",
        )
    return {names[name]: metric for name, metric in found.items()}


def _export_outputs(predictions: Mapping[str, Any], kinds: Mapping[str, Any] | None) -> dict[str, Any]:
    outputs: dict[str, Any] = {_DEFAULT_KEY: PredictOutput(dict(predictions))}
    for name, kind in (kinds or {}).items():
        if name not in predictions:
            raise BadValue(f"export_outputs names '{name}'.", suggest(str(name), predictions))
        outputs[name] = kind(predictions[name])
    return outputs


def _object_saver(model: Any) -> Any:
    model._track_trackable(v1.train.get_or_create_global_step(), "estimator_global_step", overwrite=True)
    view = tf.__internal__.tracking.ObjectGraphView(model)
    return v1.train.Saver(var_list=view.frozen_saveable_objects(), sharded=True)


def _save_weights(
    estimator: Estimator, keras_model: Any, custom_objects: Any, weights: list[Any], by_object: bool
) -> str:
    """Writes the model's weights, unless an earlier Estimator with this model_dir did, and returns the checkpoint's path."""
    folder = tf.io.gfile.join(estimator.model_dir, "keras")
    latest = tf.train.latest_checkpoint(folder)
    if latest:
        return str(latest)
    tf.io.gfile.makedirs(folder)
    config = estimator.config
    with tf.Graph().as_default(), _old_keras_calls():
        v1.set_random_seed(config.tf_random_seed)
        v1.train.create_global_step()
        optimizer_config = keras_model.optimizer.get_config()
        model = _copy(keras_model, custom_objects, ModeKeys.TRAIN, None, None, optimizer_config)
        model._make_train_function()
        saver = _object_saver(model) if by_object else v1.train.Saver()
        with v1.Session(config=config.session_config) as session:
            session.run(v1.global_variables_initializer())
            session.run(
                [v1.assign(variable, value) for variable, value in zip(model.weights, weights, strict=True)]
            )
            return str(saver.save(session, tf.io.gfile.join(folder, "keras_model.ckpt")))
