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
    """Starts an iterator over what a source gives, instead of over the dataset that it was made for.

    The exchange is made in the finished graph: the input function has been called all the same, because the seeds of a
    model's ops come of the number of ops before them, and they are to be those of a training that reads by itself.
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
    """The tensors of a batch that comes from `source`, where the input function's own would be."""
    dataset = call_for_lane(estimator, input_fn, 0, source.num_lanes)
    source.fingerprint = take_fingerprint(dataset, input_fn)
    iterator = v1.data.make_initializable_iterator(dataset)
    hook = InitializeStream(iterator, dataset, source)
    return feed_of(iterator.get_next(), (hook,))
