"""The feed of a training whose data other tasks read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.input_feed import Feed, InitializeIterator, feed_of
from portwright.tensorflow.stream_batches import receive
from portwright.tensorflow.stream_lanes import call_for_lane, take_fingerprint

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator
    from portwright.tensorflow.stream_source import Source

v1 = tf.compat.v1


class InitializeStream(InitializeIterator):
    """Initialises an iterator over a source's batches, instead of over the dataset that it was made for.

    The dataset is replaced in the finished graph. The input function is called nevertheless, because the seed of an op
    depends on the number of ops before it, and seeds must be those of a training that reads its data itself.
    """

    def __init__(self, iterator: Any, dataset: Any, source: Source) -> None:
        super().__init__(iterator)
        self._dataset, self._source = dataset, source

    def begin(self) -> None:
        super().begin()
        with tf.device(self._dataset._variant_tensor.device):
            received = receive(self._source.batches, self._dataset.element_spec)
        self._initializer._update_input(0, received._variant_tensor)


def make_streamed_feed(estimator: Estimator, input_fn: Any, source: Source) -> Feed:
    """A feed of the batches of `source`, in the form of the input function's batches."""
    dataset = call_for_lane(estimator, input_fn, 0, source.num_lanes)
    source.fingerprint = take_fingerprint(dataset, input_fn)
    iterator = v1.data.make_initializable_iterator(dataset)
    hook = InitializeStream(iterator, dataset, source)
    return feed_of(iterator.get_next(), (hook,))
