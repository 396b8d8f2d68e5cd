"""Batches that one process sends to another: the values to send, and a dataset of the values received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import UserError

v1 = tf.compat.v1

# Types that a NumPy array is sent in; text, bfloat16 and the like are serialised by TensorFlow.
_PLAIN_KINDS = "biufc"


def flat_specs(element_spec: Any) -> list[Any]:
    """The specs of a batch's tensors, with those that sparse and ragged tensors consist of."""
    specs: list[Any] = tf.nest.flatten(element_spec, expand_composites=True)
    for spec in specs:
        if spec.dtype in (tf.variant, tf.resource):
            raise UserError(
                f"a batch of the input function holds a {spec.dtype.name}, such as a dataset, which cannot be sent to another process.",
                "Let it give tensors, sparse or ragged ones too; or leave --stream_data out.",
            )
    return specs


def tensors_to_send(batch: Any) -> list[Any]:
    """The tensors of a batch in a form that `receive` takes: those of other than plain types are serialised to bytes."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return [tensor if _is_plain(tensor.dtype) else tf.io.serialize_tensor(tensor) for tensor in tensors]


def values_to_send(fetched: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The values of `tensors_to_send` as arrays of plain types."""
    return [
        np.frombuffer(each, np.uint8) if isinstance(each, bytes) else np.asarray(each) for each in fetched
    ]


def count_samples(fetched: Sequence[Any]) -> int:
    """The number of samples in a batch: the most frequent length of its tensors; 1 without any."""
    lengths = [each.shape[0] for each in fetched if isinstance(each, np.ndarray) and each.ndim]
    return int(max(set(lengths), key=lengths.count)) if lengths else 1


def receive(batches: Callable[[], Iterator[Sequence[Any]]], element_spec: Any) -> tf.data.Dataset:
    """A dataset of received batches, in the form of `values_to_send`; it asks for a batch only when a step needs it."""
    specs = flat_specs(element_spec)
    sent = tuple(spec if _is_plain(spec.dtype) else tf.TensorSpec([], tf.string) for spec in specs)

    def generate() -> Iterator[tuple[Any, ...]]:
        for batch in batches():
            yield tuple(
                value if _is_plain(spec.dtype) else value.tobytes()
                for value, spec in zip(batch, specs, strict=True)
            )

    def build(*values: Any) -> Any:
        tensors = []
        for value, spec in zip(values, specs, strict=True):
            tensor = value if _is_plain(spec.dtype) else tf.io.parse_tensor(value, spec.dtype)
            tensor.set_shape(spec.shape)
            tensors.append(tensor)
        return tf.nest.pack_sequence_as(element_spec, tensors, expand_composites=True)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=sent).map(build)
    options = tf.data.Options()
    # One of the default optimizations prefetches.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_plain(dtype: tf.DType) -> bool:
    return dtype.as_numpy_dtype is not object and np.dtype(dtype.as_numpy_dtype).kind in _PLAIN_KINDS
