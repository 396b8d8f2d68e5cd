"""The inputs of a saved model: placeholders, and the features that are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from portwright.tensorflow.arguments import BadValue

v1 = tf.compat.v1

LONE_FEATURE = "feature"
LONE_LABEL = "label"
LONE_RECEIVER = "input"


class _Serving(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_Serving):
    """Features for model_fn, as a dict, and the tensors that are fed to get them."""

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        return super().__new__(
            cls,
            _named(features, "features", LONE_FEATURE, int_keys=True),
            _named(receiver_tensors, "receiver_tensors", LONE_RECEIVER),
            _alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_Serving):
    """As ServingInputReceiver, for a model_fn whose features are one tensor."""

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        if isinstance(features, Mapping):
            raise BadValue(
                f"TensorServingInputReceiver was given a dict of features: {', '.join(map(str, features))}.",
                "Give one Tensor, or use ServingInputReceiver.",
            )
        receiver = ServingInputReceiver(features, receiver_tensors, receiver_tensors_alternatives)
        return super().__new__(
            cls,
            receiver.features[LONE_FEATURE],
            receiver.receiver_tensors,
            receiver.receiver_tensors_alternatives,
        )


class _Supervised(NamedTuple):
    features: Any
    labels: Any
    receiver_tensors: dict[str, Any]


class SupervisedInputReceiver(_Supervised):
    """Features and labels, for a saved model that trains or evaluates."""

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        _named(features, "features", LONE_FEATURE, int_keys=True)
        _named(labels, "labels", LONE_LABEL, int_keys=True)
        return super().__new__(
            cls, features, labels, _named(receiver_tensors, "receiver_tensors", LONE_RECEIVER)
        )


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function that parses serialized tf.Example protos by `feature_spec`."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        serialized = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(
            v1.io.parse_example(serialized, dict(feature_spec)), {"examples": serialized}
        )

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function that feeds the features themselves; `features` gives their types and shapes."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = {name: _placeholder_like(like, default_batch_size) for name, like in features.items()}
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function that feeds features and labels; both may be a tensor or a dict of tensors."""
    feature_names = set(features) if isinstance(features, Mapping) else {LONE_RECEIVER}
    label_names = set(labels) if isinstance(labels, Mapping) else {LONE_LABEL}
    if both := feature_names & label_names:
        raise BadValue(
            f"Features and labels share the keys {', '.join(sorted(map(str, both)))}.",
            "Give each its own key.",
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed_features, feature_tensors = _placeholders(features, LONE_RECEIVER, default_batch_size)
        fed_labels, label_tensors = _placeholders(labels, LONE_LABEL, default_batch_size)
        return SupervisedInputReceiver(fed_features, fed_labels, {**feature_tensors, **label_tensors})

    return supervised_input_receiver_fn


def _placeholders(like: Any, lone_name: str, batch_size: int | None) -> tuple[Any, dict[str, Any]]:
    if isinstance(like, Mapping):
        made = {name: _placeholder_like(tensor, batch_size) for name, tensor in like.items()}
        return made, made
    lone = _placeholder_like(like, batch_size)
    return lone, {lone_name: lone}


def _placeholder_like(like: Any, batch_size: int | None) -> Any:
    shape = tf.TensorShape([batch_size]).concatenate(like.shape[1:])
    # A graph tensor's name is kept so that the saved model is readable; an eager tensor has none.
    name = None if isinstance(like, tf.__internal__.EagerTensor) else like.op.name
    return v1.placeholder(like.dtype, shape, name=name)


def _alternatives(given: Any) -> dict[str, dict[str, Any]] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise BadValue(
            f"receiver_tensors_alternatives is a {type(given).__name__}.",
            "Give a dict of names to dicts of tensors.",
        )
    return {
        name: _named(tensors, f"receiver_tensors_alternatives['{name}']", LONE_RECEIVER)
        for name, tensors in given.items()
    }


def _named(tensors: Any, what: str, lone_name: str, int_keys: bool = False) -> dict[Any, Any]:
    if tensors is None:
        raise BadValue(f"{what} is None.", "Give a Tensor or a dict of Tensors.")
    named = dict(tensors) if isinstance(tensors, Mapping) else {lone_name: tensors}
    for key, tensor in named.items():
        if not isinstance(key, str) and not (int_keys and isinstance(key, int)):
            raise BadValue(
                f"A key of {what} is {key!r}.", f"Use strings{' or integers' if int_keys else ''}."
            )
        if not tf.is_tensor(tensor):
            raise BadValue(
                f"{what} '{key}' is a {type(tensor).__name__}.",
                "Give a Tensor, SparseTensor or RaggedTensor.",
            )
    return named
