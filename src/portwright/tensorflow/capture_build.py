"""Builds the graph of a step from a model function and an input function; nothing of it is run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tensorflow as tf

from portwright.errors import UserError
from portwright.graph.inputs import TensorSpec
from portwright.tensorflow.argument_names import argument_names, call_with

_SEED = 1  # what a RunConfig has where the user names none


@dataclass(frozen=True)
class BuiltStep:
    """A step's graph and the tensors that matter of it."""

    graph: Any
    mode: str
    inputs: Mapping[str, Any]  # by name: what the input function gave
    loss: Any  # None where the mode has none
    fetches: tuple[Any, ...]  # ops that a session would run
    layers: tuple[Any, ...] = ()  # Keras layers that were called
    optimizers: tuple[str, ...] = ()  # classes of the optimizers that were made
    num_samples: int | None = None
    global_step: str = ""  # name of the variable's op
    notes: tuple[str, ...] = field(default=())


def build_step(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any] | None,
    *,
    mode: str = "train",
    params: Mapping[str, Any] | None = None,
    config: Any = None,
    batch_size: int | None = None,
    described: Any = None,
) -> BuiltStep:
    """Calls both functions as an Estimator does, with those of features, labels, mode, params and config that they take.

    `described` (TensorSpec, alone, in a tuple or by name) stands in for the input function; `batch_size` changes the first
    dimension of what it gave.
    """
    graph = tf.Graph()
    made: list[Any] = []
    optimizers: list[str] = []
    with graph.as_default(), _kept_policy(), _watching(made, optimizers):
        tf.compat.v1.set_random_seed(_SEED)
        global_step = tf.compat.v1.train.get_or_create_global_step(graph)
        offered = {"mode": mode, "params": copy.deepcopy(params) if params is not None else {}, "config": config}
        if described is not None:
            features, labels, num_samples = *_describe(described), None
        else:
            features, labels, num_samples = _call_input(input_fn, offered)
        if batch_size is not None:
            features, labels = _resize((features, labels), batch_size)
        spec = _call_model(model_fn, features, labels, offered)
        loss, fetches = _read_spec(spec, mode)
    return BuiltStep(
        graph,
        mode,
        name_tensors(features, labels),
        loss,
        fetches,
        tuple(made),
        tuple(optimizers),
        num_samples,
        global_step.op.name,
    )


def _call_input(input_fn: Callable[..., Any] | None, offered: Mapping[str, Any]) -> tuple[Any, Any, int | None]:
    if input_fn is None:
        raise UserError(
            "there is no input function, so there is no batch.", "Give one, or describe a batch with --input."
        )
    given = call_with(input_fn, {**offered, "input_context": None})
    num_samples = None
    if isinstance(given, tf.data.Dataset):
        given = tf.compat.v1.data.make_initializable_iterator(given).get_next()
    elif hasattr(given, "get_next"):
        given = given.get_next()
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        if len(given) != 2:
            raise UserError(
                f"the input function gave {len(given)} parts.", "Give (features, labels), or features alone."
            )
        return given[0], given[1], num_samples
    return given, None, num_samples


def _call_model(
    model_fn: Callable[..., Any], features: Any, labels: Any, offered: Mapping[str, Any]
) -> Any:
    names = argument_names(model_fn)
    if "labels" not in names and labels is not None and "kwargs" not in names:
        raise UserError(
            "the input function gives labels, and the model function takes none.",
            "Write model_fn(features, labels, mode, params).",
        )
    kwargs = {name: value for name, value in {**offered, "labels": labels}.items() if name in names}
    return model_fn(features=features, **kwargs) if "features" in names else model_fn(features, **kwargs)


def _read_spec(spec: Any, mode: str) -> tuple[Any, tuple[Any, ...]]:
    if not hasattr(spec, "train_op") or not hasattr(spec, "loss"):
        raise UserError(
            f"the model function returned {type(spec).__name__}.", "Return an EstimatorSpec(mode, loss=..., train_op=...)."
        )
    loss = spec.loss
    if mode == "train":
        if spec.train_op is None or loss is None:
            raise UserError(
                f"the model function returned no {'train_op' if spec.train_op is None else 'loss'} in mode 'train'.",
                "Return EstimatorSpec(mode, loss=loss, train_op=train_op).",
            )
        return loss, (_op(spec.train_op), loss.op)
    wanted = [loss] if loss is not None else tf.nest.flatten(spec.predictions)
    tensors = [tensor for tensor in wanted if isinstance(tensor, tf.Tensor | tf.Operation | tf.Variable)]
    if not tensors:
        raise UserError(
            f"the model function returned neither a loss nor predictions in mode {mode!r}.", "Return one of them."
        )
    return loss, tuple(_op(tensor) for tensor in tensors)


def _op(thing: Any) -> Any:
    return thing if isinstance(thing, tf.Operation) else thing.op


def name_tensors(features: Any, labels: Any) -> dict[str, Any]:
    """The tensors of a batch by name: keys of the features as they are, labels below 'labels'."""
    named: dict[str, Any] = {}

    def add(part: Any, path: str, default: str) -> None:
        if isinstance(part, Mapping):
            for key, value in part.items():
                add(value, f"{path}.{key}" if path else str(key), default)
        elif isinstance(part, list | tuple):
            for index, value in enumerate(part):
                add(value, f"{path}.{index}" if path else str(index), default)
        elif isinstance(part, tf.Tensor):
            named[path or default] = part
        elif isinstance(part, tf.SparseTensor | tf.RaggedTensor):
            for tensor in tf.nest.flatten(part, expand_composites=True):
                named[f"{path or default}.{tensor.op.name}.{tensor.value_index}"] = tensor

    add(features, "", "features")
    add(labels, "labels", "labels")
    return named


def _describe(described: Any) -> tuple[Any, Any]:
    if isinstance(described, TensorSpec):
        return _placeholder(described), None
    names = getattr(described, "_fields", ()) or (tuple(described) if isinstance(described, Mapping) else ())
    if names:
        items = described.items()
        features = {name: _placeholder(spec, name) for name, spec in items if name.partition(".")[0] != "labels"}
        labels = {name: _placeholder(spec, name) for name, spec in items if name.partition(".")[0] == "labels"}
        if set(labels) == {"labels"}:
            return features, labels["labels"]
        return features, {name.partition(".")[2]: value for name, value in labels.items()} or None
    if len(described) > 2:
        raise UserError(
            f"{len(described)} inputs without names were described.",
            "Name them: features by their keys, the labels as 'labels:int32[8]'.",
        )
    return _placeholder(described[0]), _placeholder(described[1]) if len(described) == 2 else None


def _placeholder(spec: TensorSpec, name: str = "input") -> Any:
    plain = "".join(letter if letter.isalnum() else "_" for letter in name) or "input"
    return tf.compat.v1.placeholder(spec.dtype, spec.shape, name=f"described/{plain}")


def _resize(batch: Any, batch_size: int) -> Any:
    first: list[int | None] = [
        tensor.shape[0] for tensor in tf.nest.flatten(batch) if isinstance(tensor, tf.Tensor) and tensor.shape.rank
    ]
    before = first[0] if first else None

    def change(tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor) or not tensor.shape.rank or tensor.shape[0] not in (before, None):
            return tensor
        shape = [batch_size, *tensor.shape.as_list()[1:]]
        return tf.compat.v1.placeholder(tensor.dtype, shape, name="resized/batch")

    return tf.nest.map_structure(change, batch)


@contextmanager
def _kept_policy() -> Iterator[None]:
    """A model function may set Keras's precision for the whole process; afterwards it is as before."""
    policy = tf.keras.mixed_precision.global_policy()
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)


@contextmanager
def _watching(layers: list[Any], optimizers: list[str]) -> Iterator[None]:
    """Notes each Keras layer when its call ends, and the class of each optimizer: the graph alone does not know them."""
    from tf_keras.src.engine import base_layer, base_layer_v1

    start = tf.compat.v1.train.Optimizer.__init__
    seen: set[int] = set()

    def watch(call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(self, *args, **kwargs)
            if id(self) not in seen:
                seen.add(id(self))
                layers.append(self)
            return result

        return watched

    def watched_start(self: Any, *args: Any, **kwargs: Any) -> None:
        optimizers.append(type(self).__name__)
        start(self, *args, **kwargs)

    with ExitStack() as stack:
        for kind in (base_layer.Layer, base_layer_v1.Layer):  # inside a graph Keras swaps the one for the other
            stack.enter_context(mock.patch.object(kind, "__call__", watch(kind.__call__)))
        stack.enter_context(mock.patch.object(tf.compat.v1.train.Optimizer, "__init__", watched_start))
        yield
