"""Builds the graph of a step from a model function and an input function; nothing of it is run."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.graph.inputs import TensorSpec
from portwright.patched import patched
from portwright.tensorflow.arguments import argument_names, call_with
from portwright.tensorflow.input_feed import make_feed

_SEED = 1  # RunConfig's default


@dataclass(frozen=True)
class BuiltStep:
    """A step's graph and the tensors and ops in it that a capture needs."""

    graph: Any
    mode: str
    inputs: Mapping[str, Any]  # name: a tensor that the input function returned
    loss: Any  # None in a mode without a loss
    fetches: tuple[Any, ...]  # ops that a session would run
    layers: tuple[Any, ...] = ()  # the Keras layers that the model function called
    optimizers: tuple[str, ...] = ()  # classes of the optimizers that the model function made
    global_step: str = ""  # name of the variable's op


GetBatch = Callable[[str], tuple[Any, Any]]  # of a mode: features and labels
MakeSpec = Callable[[Any, Any, str], Any]  # of features, labels and a mode


def build_step(
    get_batch: GetBatch,
    make_spec: MakeSpec,
    *,
    mode: str = "train",
    batch_size: int | None = None,
    described: Any = None,
) -> BuiltStep:
    """Builds the graph in the order of an Estimator: global step, input, model.

    `described` (TensorSpecs: one, a tuple or a dict) replaces the input function; `batch_size` changes the first dimension
    of the inputs.
    """
    graph = tf.Graph()
    made: list[Any] = []
    optimizers: list[str] = []
    with graph.as_default(), _kept_policy(), _watching(made, optimizers):
        tf.compat.v1.set_random_seed(_SEED)
        global_step = tf.compat.v1.train.get_or_create_global_step(graph)
        features, labels = _describe(described) if described is not None else get_batch(mode)
        if batch_size is not None:
            features, labels = _resize((features, labels), batch_size)
        loss, fetches = _read_spec(make_spec(features, labels, mode), mode)
    named = name_tensors(features, labels)
    return BuiltStep(graph, mode, named, loss, fetches, tuple(made), tuple(optimizers), global_step.op.name)


def of_functions(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any] | None,
    params: Mapping[str, Any] | None,
    config: Any,
) -> tuple[GetBatch, MakeSpec]:
    """Returns functions that call a model function and an input function with the arguments they take of mode, params and config."""
    offered = {"params": copy.deepcopy(dict(params or {})), "config": config}

    def get_batch(mode: str) -> tuple[Any, Any]:
        if input_fn is None:
            raise UserError(
                "there is no input function, so there is no batch.",
                "Give one, or describe a batch with --input.",
            )
        with tf.compat.v1.device("/cpu:0"):
            feed = make_feed(call_with(input_fn, {**offered, "mode": mode}))
        return feed.features, feed.labels

    def make_spec(features: Any, labels: Any, mode: str) -> Any:
        names = argument_names(model_fn)
        if "labels" not in names and labels is not None:
            raise UserError(
                "the input function gives labels, and the model function takes none.",
                "Write model_fn(features, labels, mode, params).",
            )
        kwargs = {k: v for k, v in {**offered, "labels": labels, "mode": mode}.items() if k in names}
        return model_fn(features, **kwargs)

    return get_batch, make_spec


def of_estimator(estimator: Any, input_fn: Callable[..., Any]) -> tuple[GetBatch, MakeSpec]:
    """As `of_functions`, for an Estimator: with its params and config, and through the methods that a subclass overrides."""

    def get_batch(mode: str) -> tuple[Any, Any]:
        feed = estimator._get_feed(input_fn, mode)
        return feed.features, feed.labels

    def make_spec(features: Any, labels: Any, mode: str) -> Any:
        return estimator._call_model_fn(features, labels, mode, estimator.config)

    return get_batch, make_spec


def _read_spec(spec: Any, mode: str) -> tuple[Any, tuple[Any, ...]]:
    if not hasattr(spec, "train_op") or not hasattr(spec, "loss"):
        raise UserError(
            f"the model function returned {type(spec).__name__}.",
            "Return an EstimatorSpec(mode, loss=..., train_op=...).",
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
            f"the model function returned neither a loss nor predictions in mode {mode!r}.",
            "Return one of them.",
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
        features = {
            name: _placeholder(spec, name) for name, spec in items if name.partition(".")[0] != "labels"
        }
        labels = {
            name: _placeholder(spec, name) for name, spec in items if name.partition(".")[0] == "labels"
        }
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
        tensor.shape[0]
        for tensor in tf.nest.flatten(batch)
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank
    ]
    before = first[0] if first else None

    def change(tensor: Any) -> Any:
        if (
            not isinstance(tensor, tf.Tensor)
            or not tensor.shape.rank
            or tensor.shape[0] not in (before, None)
        ):
            return tensor
        shape = [batch_size, *tensor.shape.as_list()[1:]]
        return tf.compat.v1.placeholder(tensor.dtype, shape, name="resized/batch")

    return tf.nest.map_structure(change, batch)


@contextmanager
def uncollected() -> Iterator[None]:
    """Turns the garbage collector off: while a large graph is built none of it is garbage, so that each search is lost time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _kept_policy() -> Iterator[None]:
    """Restores Keras's global precision policy afterwards: a model function may set it."""
    policy, kind = tf.keras.mixed_precision.global_policy(), tf.keras.backend.floatx()
    try:
        yield
    finally:
        tf.keras.backend.set_floatx(kind)
        tf.keras.mixed_precision.set_global_policy(policy)


@contextmanager
def _watching(layers: list[Any], optimizers: list[str]) -> Iterator[None]:
    """Records each Keras layer when its call ends, and the class of each optimizer: the graph does not hold them."""
    from tf_keras.src.engine import base_layer, base_layer_v1  # type: ignore[import-untyped]

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
        # Both classes: inside a graph Keras uses the second in place of the first.
        for kind in (base_layer.Layer, base_layer_v1.Layer):
            stack.enter_context(patched(kind, "__call__", watch(kind.__call__)))
        stack.enter_context(patched(tf.compat.v1.train.Optimizer, "__init__", watched_start))
        yield
