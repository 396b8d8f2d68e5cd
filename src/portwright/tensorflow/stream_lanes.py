"""Reads batches for a training in another process; one of n lanes is every n-th batch, beginning at any batch.

The graph is built as a training builds it, with its seeds, so that the batches are those that the training would read itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training import training_util

from portwright.errors import UserError
from portwright.tensorflow.arguments import argument_names
from portwright.tensorflow.graph_walk import ancestors
from portwright.tensorflow.input_feed import InitializeIterator
from portwright.tensorflow.input_state import InputState
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.stream_batches import count_samples, flat_specs, tensors_to_send, values_to_send
from portwright.tensorflow.stream_marks import LaneMarks, Marks

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1
_NUM_PREFETCHED = 2  # batches that are prepared while one is sent


@dataclass(frozen=True)
class LaneBatch:
    """A request for one batch: number `index` in lane `lane` of `num_lanes`."""

    lane: int
    num_lanes: int
    index: int
    fingerprint: str = ""  # that of the training's own pipeline, which the reader's must equal

    def as_bytes(self) -> bytes:
        return json.dumps([self.lane, self.num_lanes, self.index, self.fingerprint]).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> LaneBatch:
        return cls(*json.loads(bytes(body)))


class Lanes:
    """The lanes that this process reads; each stays open at its last batch."""

    def __init__(
        self, estimator: Estimator, input_fn: Callable[..., Any], seed: int, marks: Marks | None = None
    ) -> None:
        self._estimator, self._input_fn, self._seed, self.marks = estimator, input_fn, seed, marks
        self._open: dict[int, _Lane] = {}
        # Whether the input function itself splits the data into lanes.
        self.are_shared_out = takes_context(input_fn)

    def read(self, wanted: LaneBatch) -> tuple[list[Any], int] | None:
        """The tensors of a batch and its number of samples; None if the lane ends before it."""
        lane = self._open.get(wanted.lane)
        if lane is None or lane.num_lanes != wanted.num_lanes or lane.next_index > wanted.index:
            self.close(wanted.lane)
            lane = _Lane(self._estimator, self._input_fn, self._seed, wanted, self.marks)
            self._open[wanted.lane] = lane
        if wanted.fingerprint not in ("", lane.fingerprint):
            raise UserError(
                "the input function builds another pipeline here than in the coordinator: the number of files or samples that it "
                "sees, the shapes or the params differ.",
                "Let every task see the same files, on a file system that all nodes share, and start all with the same command.",
            )
        return lane.read(wanted.index)

    def close(self, lane: int | None = None) -> None:
        """Closes one lane, or all of them."""
        for number in list(self._open) if lane is None else [lane]:
            if number in self._open:
                self._open.pop(number).close()


class _Lane:
    """An iterator over one lane in a graph and a session of its own."""

    def __init__(
        self, estimator: Estimator, input_fn: Any, seed: int, first: LaneBatch, marks: Marks | None
    ) -> None:
        self.num_lanes, self.next_index, self._has_ended = first.num_lanes, 0, False
        tf.keras.utils.set_random_seed(seed)
        with tf.Graph().as_default() as graph, graph.device(estimator._device_fn):
            v1.set_random_seed(estimator.config.tf_random_seed)
            estimator._create_and_assert_global_step(graph)
            training_util._get_or_create_global_step_read(graph)
            made = call_for_lane(estimator, input_fn, first.lane, first.num_lanes)
            self.fingerprint = take_fingerprint(made, input_fn)
            dataset = made if takes_context(input_fn) else made.shard(first.num_lanes, first.lane)
            iterator = v1.data.make_initializable_iterator(dataset.prefetch(_NUM_PREFETCHED))
            tensors = tensors_to_send(iterator.get_next())
            self._state = InputState(ancestors(tensors))
            creator = v1.train.ChiefSessionCreator(config=_session_config(estimator))
            # The session keeps the graph, so that it can be used in any thread.
            self._monitored = v1.train.MonitoredSession(creator, hooks=[InitializeIterator(iterator)])
            self._session = self._monitored._tf_sess()
            self._next = self._session.make_callable(tensors)
        self._marks = None
        if marks is not None:
            self._marks = marks.of_lane(first.lane, first.num_lanes, self._state.digest)
            self._go_to_mark(self._marks, first.index)

    def _go_to_mark(self, marks: LaneMarks, index: int) -> None:
        found = marks.find(index)
        if found is not None and not self._state.restore(self._session, found[1], found[0]):
            self.next_index = found[0]

    def read(self, index: int) -> tuple[list[Any], int] | None:
        if self._has_ended:
            return None
        try:
            if self.next_index < index:
                self.next_index += self._state.skip(self._session, index - self.next_index)
            if self._marks is not None:
                self._marks.offer(index, lambda: self._state.save(self._session, index))
            fetched = self._next()  # raises OutOfRangeError also if the lane ended among the skipped batches
        except tf.errors.OutOfRangeError:
            self._has_ended = True
            return None
        self.next_index += 1
        return values_to_send(fetched), count_samples(fetched)

    def close(self) -> None:
        self._monitored.close()


def _session_config(estimator: Estimator) -> Any:
    """The session's config with its own threads: a training may block one of the shared ones while it waits for this lane."""
    config = v1.ConfigProto()
    config.CopyFrom(estimator.config.session_config)
    config.use_per_session_threads = True
    return config


def takes_context(input_fn: Any) -> bool:
    """Whether an input function splits its data among pipelines itself."""
    return bool(getattr(input_fn, "takes_input_context", "input_context" in argument_names(input_fn)))


def call_for_lane(estimator: Estimator, input_fn: Any, lane: int, num_lanes: int) -> Any:
    """The input function's dataset for a lane, if the function splits its data; else its dataset for a single process.

    Batch i of the training is number i // num_lanes of lane i % num_lanes. A lane of a dataset that is not split has
    every num_lanes-th batch.
    """
    context = None
    if takes_context(input_fn):
        context = tf.distribute.InputContext(num_input_pipelines=num_lanes, input_pipeline_id=lane)
    made = estimator._call_input_fn(input_fn, ModeKeys.TRAIN, context)
    if not isinstance(made, tf.data.Dataset):
        raise UserError(
            "the data are to be read by other tasks, and the input function does not return a dataset.",
            "Return the tf.data.Dataset itself, or leave --stream_data out.",
        )
    flat_specs(made.element_spec)
    return made


def take_fingerprint(dataset: Any, input_fn: Any) -> str:
    """A hash that is equal in all tasks with the same pipeline: of its ops and shapes, or, if it is split, of the batch's specs."""
    lines = [str(dataset.element_spec)]
    if not takes_context(input_fn):
        ops = sorted(ancestors([dataset._variant_tensor]), key=lambda op: op.name)
        lines += [f"{op.type} {[str(tensor.shape) for tensor in op.outputs]}" for op in ops]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
