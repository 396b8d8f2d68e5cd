"""The batches of a training as other tasks read them, in the order in which one process would read them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.input_feed import Feed, InitializeIterator, feed_of
from portwright.tensorflow.input_state import InputState, Saved
from portwright.tensorflow.stream_batches import receive
from portwright.tensorflow.stream_lanes import LaneBatch, call_for_lane, take_fingerprint

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

Batch = tuple[Sequence[Any], int]
# Reads the requested batches in their order, and yields the tensors of each, or None if its lane ends before it.
ReadAll = Callable[[Iterator[LaneBatch]], Iterator[Sequence[Any] | None]]

_NUM_KEPT = 2  # the newest batches, which `seek` can go back to


@dataclass(frozen=True)
class _Given:
    """A batch that was given to the training, and the turn after it."""

    tensors: Sequence[Any]
    next_turn: int


class Source:
    """Takes one batch of each lane in turn: turn t is batch t // num_lanes of lane t % num_lanes; lanes that ended are skipped.

    It outlives the graphs that read from it, so that after an evaluation the training continues with the batches that are
    requested already.
    """

    def __init__(
        self,
        read_all: ReadAll,
        num_lanes: int,
        is_shared_out: bool,
        on_start_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_start_over = on_start_over
        self.num_lanes = num_lanes
        # If the input function itself splits the data, the order of batches depends on num_lanes.
        self.is_shared_out = is_shared_out
        # An exception of `batches`, which TensorFlow reports as an op's error.
        self.failure: Exception | None = None
        self.fingerprint = ""  # that of the pipeline in the training's graph
        self._read_all = read_all
        self._results: Iterator[Sequence[Any] | None] | None = None
        self._kept: deque[_Given] = deque(maxlen=_NUM_KEPT)
        self._position = 0  # number of batches before the next one
        self._num_given = 0  # batches drawn from the lanes; more than the position after a seek backwards
        self._turn = 0  # the turn after the newest batch
        self._ended: set[int] = set()

    @property
    def position(self) -> int:
        return self._position

    def turn_at(self, position: int) -> int:
        """The turn after `position` batches, which must be among the newest ones."""
        back = self._num_given - position
        if back == 0:
            return self._turn
        if not 0 < back < len(self._kept):
            raise ValueError(f"batch {position} was not given just now")
        return self._kept[-1 - back].next_turn

    def seek(self, position: int, turn: int | None = None) -> None:
        """Moves to the place after `position` batches; `turn` is the next turn, if it is not the same number."""
        if self._results is not None and 0 <= self._num_given - position <= len(self._kept):
            self._position = position
            return
        self.close()
        self._position = self._num_given = position
        self._turn = position if turn is None else turn

    def start_over(self) -> None:
        """Moves to the beginning; the data may be others than before."""
        self._on_start_over()
        self.seek(0)

    def batches(self) -> Iterator[Sequence[Any]]:
        """The batches from here on, until all lanes have ended."""
        while True:
            try:
                batch = self._next()
            except Exception as error:
                self.failure = error
                raise
            if batch is None:
                return
            yield batch

    def close(self) -> None:
        """Drops the batches that are kept and those that are requested."""
        results, self._results = self._results, None
        close = getattr(results, "close", None)
        if close is not None:
            close()
        self._kept.clear()
        self._ended.clear()

    def _next(self) -> Sequence[Any] | None:
        back = self._num_given - self._position
        if back == 0 and not self._draw():
            return None
        self._position += 1
        return self._kept[-max(back, 1)].tensors

    def _draw(self) -> bool:
        if self._results is None:
            self._results = self._read_all(self._turns(self._turn))
        while len(self._ended) < self.num_lanes:
            tensors = next(self._results)
            turn, self._turn = self._turn, self._turn + 1
            if tensors is None:
                self._ended.add(turn % self.num_lanes)
                continue
            self._num_given += 1
            self._kept.append(_Given(tensors, self._turn))
            return True
        return False

    def _turns(self, first: int) -> Iterator[LaneBatch]:
        turn = first
        while len(self._ended) < self.num_lanes:
            lane, index = turn % self.num_lanes, turn // self.num_lanes
            yield LaneBatch(lane, self.num_lanes, index, self.fingerprint)
            turn += 1


class SourceState(InputState):
    """The position of a streamed input: how many batches were given, and whose turn is next."""

    needs_no_state = True

    def __init__(self, needed: set[tf.Operation], source: Source) -> None:
        super().__init__(needed)
        self._source = source
        self._start = 0
        if source.is_shared_out:
            self.digest = f"{self.digest}, {source.num_lanes} lanes"

    def save(self, session: Any, num_runs: int) -> Saved:
        if not self._source.is_shared_out:
            # A training that reads its data itself gets the same batches, and can resume this one; the reverse holds too.
            return Saved([], 0, "other tasks read it")
        return Saved([json.dumps({"turn": self._source.turn_at(num_runs)}).encode()], num_runs, "")

    def start_over(self) -> None:
        self._source.start_over()

    def restore(self, session: Any, states: list[bytes], num_runs: int) -> str:
        if not self._source.is_shared_out:
            self._start = num_runs
            return ""
        try:
            turn = int(json.loads(states[0])["turn"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            return f"it cannot be read: {error!r}"
        self._source.seek(num_runs, turn)
        self._start = num_runs
        return ""

    def skip(self, session: Any, num_batches: int) -> int:
        position = self._start + num_batches
        if position != self._source.position:
            self._source.seek(position)
        return num_batches


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
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    hook = InitializeStream(iterator, dataset, source)
    return feed_of(iterator.get_next(), (hook,))
