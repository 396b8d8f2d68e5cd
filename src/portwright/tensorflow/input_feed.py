"""What an input function returned, as the tensors that a model function takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow import prefetching
from portwright.tensorflow.bad_input import BadValue

if TYPE_CHECKING:
    from portwright.tensorflow.processes import Processes


@dataclass(frozen=True)
class Feed:
    """One batch as tensors, and the hooks that make it flow."""

    features: Any
    labels: Any
    hooks: tuple[Any, ...]


class InitializeIterator(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Starts an iterator when a session is made, over `read_ahead` as it is but with a prefetch, if that is given."""

    def __init__(self, iterator: Any, read_ahead: Any = None) -> None:
        self._iterator = iterator
        self._read_ahead = read_ahead
        self._initializer: Any = None

    def begin(self) -> None:
        self._initializer = self._iterator.initializer
        if self._read_ahead is not None:
            prefetching.append_prefetch(self._read_ahead, self._initializer)
            self._read_ahead = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)


def make_feed(result: Any, processes: Processes | None = None, is_shared: bool = True) -> Feed:
    """Takes a dataset, an iterator, a pair (features, labels), or features alone.

    Of several processes each takes its own share of the batches, unless the input function gave it one already.
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
        is_late = processes is None and prefetching.is_wanted() and prefetching.needs_prefetch(result)
        hooks = (InitializeIterator(iterator, result if is_late else None),)
        result = iterator.get_next() if processes is None else processes.next_batch(iterator)
    elif isinstance(result, tf.compat.v1.data.Iterator):
        hooks = (InitializeIterator(result),) if result._initializer is not None else ()
        result = result.get_next()
    return feed_of(result, hooks)


def feed_of(batch: Any, hooks: tuple[Any, ...]) -> Feed:
    """What a batch's tensors are to a model function."""
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
