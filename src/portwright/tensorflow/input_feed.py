"""Turns what an input function returned into the tensors that a model function takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.input_check.stages import Stage, read_stages

if TYPE_CHECKING:
    from portwright.tensorflow.processes import Processes


@dataclass(frozen=True)
class Feed:
    """One batch as tensors, and the hooks that start its iterators."""

    features: Any
    labels: Any
    hooks: tuple[Any, ...]


class InitializeIterator(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Initialises an iterator when a session is made; if the dataset `read_ahead` is given, adds a prefetch to it."""

    def __init__(self, iterator: Any, read_ahead: Any = None) -> None:
        self._iterator = iterator
        self._read_ahead = read_ahead
        self._initializer: Any = None

    def begin(self) -> None:
        self._initializer = self._iterator.initializer
        if self._read_ahead is not None:
            append_prefetch(self._read_ahead, self._initializer)
            self._read_ahead = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)


def make_feed(result: Any, processes: Processes | None = None, is_shared: bool = True) -> Feed:
    """Makes a feed from a dataset, an iterator, a pair (features, labels), or features alone.

    Each of several processes gets its share of the batches, unless the input function returned its share already.
    """
    hooks: tuple[Any, ...] = ()
    if result is None:
        raise BadValue("input_fn returned nothing.", "Return a dataset, or (features, labels).")
    if processes is not None and not isinstance(result, tf.data.Dataset):
        raise BadValue(
            "several processes train together, and input_fn does not return a dataset.",
            "Return the tf.data.Dataset itself.",
        )
    if isinstance(result, tf.data.Dataset):
        if processes is not None and not is_shared:
            result = result.shard(processes.size, processes.rank)
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        is_late = processes is None and wants_prefetch() and needs_prefetch(result)
        hooks = (InitializeIterator(iterator, result if is_late else None),)
        result = iterator.get_next() if processes is None else processes.next_batch(iterator)
    elif isinstance(result, tf.compat.v1.data.Iterator):
        hooks = (InitializeIterator(result),) if result._initializer is not None else ()
        result = result.get_next()
    return feed_of(result, hooks)


def feed_of(batch: Any, hooks: tuple[Any, ...]) -> Feed:
    """Splits a batch into features and labels."""
    if isinstance(batch, (list, tuple)):
        if len(batch) != 2:
            raise BadValue(
                f"input_fn gives {len(batch)} items a batch.",
                "Give (features, labels), or features alone; put several features into a dict.",
            )
        return Feed(batch[0], batch[1], hooks)
    return Feed(batch, None, hooks)


def ends_by_itself(features: Any) -> bool:
    """Whether these features come from a dataset or a queue, which can end."""
    tensors = [item for item in tf.nest.flatten(features) if isinstance(item, tf.Tensor)]
    if any(tensor.op.type == "IteratorGetNext" for tensor in tensors):
        return True
    return bool(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS))


_PREFETCH_VARIABLE = "PORTWRIGHT_TF_PREFETCH"


def wants_prefetch() -> bool:
    """Whether PORTWRIGHT_TF_PREFETCH=1 is set; docs/benchmarks.md says why prefetching is not the default."""
    value = os.environ.get(_PREFETCH_VARIABLE, "0")
    if value not in ("0", "1", ""):
        raise BadValue(f"{_PREFETCH_VARIABLE} is {value!r}.", "Set it to 0 or 1, or unset it.")
    return value == "1"


def needs_prefetch(dataset: Any) -> bool:
    """Whether a dataset makes a batch only when a step asks for it.

    False for one that calls Python code, which could depend on when it is called.
    """
    stages = read_stages(dataset)
    last = next((stage for stage in reversed(stages) if stage.kind != "options"), None)
    return last is not None and last.kind != "prefetch" and not _call_python(stages)


def append_prefetch(dataset: Any, initializer: tf.Operation) -> None:
    """Changes the op that initialises an iterator over `dataset`, so that it iterates over the dataset with a prefetch.

    This changes the finished graph, because the seed of an op depends on the number of ops made before it, and seeds
    must stay those of tf.estimator.
    """
    with tf.device(dataset._variant_tensor.device):
        ahead = dataset.prefetch(tf.data.AUTOTUNE)
    initializer._update_input(0, ahead._variant_tensor)


def _call_python(stages: Iterable[Stage]) -> bool:
    return any(
        stage.calls_python or any(_call_python(branch) for branch in stage.branches) for stage in stages
    )
