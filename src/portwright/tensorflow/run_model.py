"""Wraps a user's model function: keeps what it was given and what it returned, and explains its exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from portwright.errors import PortwrightError, UserError
from portwright.job.blame import place_of
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.spec import EstimatorSpec

_NUM_LISTED = 3
_RETURN = {
    ModeKeys.TRAIN: "EstimatorSpec(mode, loss=..., train_op=...)",
    ModeKeys.EVAL: "EstimatorSpec(mode, loss=..., eval_metric_ops=...)",
    ModeKeys.PREDICT: "EstimatorSpec(mode, predictions=...)",
}


class WatchedModel:
    """Calls the user's model function for an Estimator, and keeps the tensors of the last graph."""

    def __init__(self, model_fn: Callable[..., Any]) -> None:
        self.features: Any = None
        self.labels: Any = None
        self.spec: Any = None
        self.variables: dict[str, list[int | None]] = {}
        self.weights: dict[str, list[int | None]] = {}  # name: shape of each trained variable
        self.checkpoint: str | None = None  # the next graph is restored from it
        self.after_build: Callable[[], None] | None = None  # called once, after a training graph is built
        self.model_fn = self._wrap(model_fn)

    def _wrap(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(model_fn)  # an Estimator reads the arguments of model_fn through it
        def watched(**given: Any) -> Any:
            self.features, self.labels, self.spec = given.get("features"), given.get("labels"), None
            mode = given.get("mode", "")
            try:
                with _refusing_to_train():
                    spec = model_fn(**given)
            except PortwrightError:
                raise
            except Exception as error:
                raise self._explain(error, mode) from error
            if not isinstance(spec, EstimatorSpec):
                wanted = _RETURN.get(mode, "EstimatorSpec(mode, ...)")
                raise UserError(
                    f"model_fn returned {_kind(spec)} in mode '{mode}'.",
                    f"Return {wanted}.",
                )
            self.spec = spec
            self.variables = _shapes(tf.compat.v1.global_variables())
            self.weights = _shapes(tf.compat.v1.trainable_variables())
            if self.checkpoint is not None and spec.scaffold.saver is None:
                check_fit(self.checkpoint, self.variables)
            if mode == ModeKeys.TRAIN and self.after_build is not None:
                after_build, self.after_build = self.after_build, None
                after_build()
            return spec

        return watched

    def _explain(self, error: Exception, mode: str) -> UserError:
        said = " ".join(str(error).split())[:400] or "no message"
        given = f"It was given features {describe(self.features)}, labels {describe(self.labels)}."
        if self.labels is None and mode != ModeKeys.PREDICT:
            given = (
                f"It was given features {describe(self.features)} and no labels: let the input function "
                "give (features, labels)."
            )
        return UserError(
            f"model_fn failed in mode '{mode}': {type(error).__name__} at {place_of(error)}: {said}",
            f"{given} Run again with --debug to see the traceback.",
        )


@contextmanager
def _refusing_to_train() -> Iterator[None]:
    """Refuses a model function that trains by itself: each new graph would train again and lose the result."""
    from tf_keras.src.engine.training_v1 import Model  # type: ignore[import-untyped]  # what a model is in a graph

    from portwright.tensorflow.estimator import Estimator

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise UserError(
                f"model_fn calls {name}() itself.",
                "Leave the call out: model_fn builds a step, and the run trains it.",
            )

        return refuse

    with ExitStack() as undone:
        for kind, name in ((Estimator, "train"), (Model, "fit"), (Model, "train_on_batch")):
            undone.callback(setattr, kind, name, getattr(kind, name))
            setattr(kind, name, refusing(name))
        yield


def check_fit(checkpoint: str, variables: Mapping[str, list[int | None]]) -> None:
    """Refuses a checkpoint of another model: TensorFlow restores values of another shape without an error."""
    there = dict(tf.train.list_variables(checkpoint))
    differences = [
        f"{name} is {list(there[name])} there and {shape} here"
        for name, shape in variables.items()
        if name in there and not tf.TensorShape(shape).is_compatible_with(there[name])
    ]
    differences += [f"{name} is not there" for name in variables if name not in there]
    if differences:
        more = f", and {len(differences) - _NUM_LISTED} more" if len(differences) > _NUM_LISTED else ""
        raise UserError(
            f"the checkpoint {checkpoint} is of another model: {'; '.join(differences[:_NUM_LISTED])}{more}.",
            "Use the params that it was trained with, or an empty --model_dir; there "
            f"--checkpoint_path {checkpoint} --is_pretrained_checkpoint takes what fits.",
        )


def _kind(value: Any) -> str:
    return "None" if value is None else "a tensor" if tf.is_tensor(value) else f"a {type(value).__name__}"


def _shapes(variables: list[Any]) -> dict[str, list[int | None]]:
    return {variable.op.name: variable.shape.as_list() for variable in variables}


def name_tensors(structure: Any, name: str) -> dict[str, Any]:
    """The tensors of a batch by their path, such as `features['ids']`."""
    if structure is None:
        return {}
    if isinstance(structure, dict):
        return {
            k: t for key in structure for k, t in name_tensors(structure[key], f"{name}[{key!r}]").items()
        }
    if isinstance(structure, (tuple, list)):
        found = (name_tensors(item, f"{name}[{index}]") for index, item in enumerate(structure))
        return {path: tensor for part in found for path, tensor in part.items()}
    return {name: structure}


def describe(structure: Any) -> str:
    """Types and shapes in short form: float32[64,8,8,1]."""
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in structure.items()) + "}"
    if isinstance(structure, (tuple, list)):
        return "(" + ", ".join(describe(value) for value in structure) + ")"
    if structure is None or not hasattr(structure, "shape"):
        return "none" if structure is None else type(structure).__name__
    return f"{tf.as_dtype(structure.dtype).name}{describe_shape(structure.shape)}"


def describe_shape(shape: Any) -> str:
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        return "[...]"
    return "[" + ",".join("?" if size is None else str(size) for size in shape.as_list()) + "]"
