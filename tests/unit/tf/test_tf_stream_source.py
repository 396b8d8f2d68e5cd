"""Batches that come through lanes: their order, a lane that ends, steps back, and what is not sent unharmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as est
from portwright.errors import UserError
from portwright.tensorflow.monitor import Monitor, watching
from portwright.tensorflow.stream_batches import count_samples, flat_specs, receive, values_to_send
from portwright.tensorflow.stream_lanes import LaneBatch, Lanes, take_fingerprint
from portwright.tensorflow.stream_source import Source

v1 = tf.compat.v1


class Played:
    """Readers of lanes in this process, one for each lane or one for all, that read three turns ahead."""

    def __init__(self, readers: Sequence[Callable[[LaneBatch], Any]]) -> None:
        self._readers = readers
        self.asked: list[LaneBatch] = []

    def read_all(self, wanted: Iterator[LaneBatch]) -> Iterator[Any]:
        ahead: list[Any] = []
        for each in wanted:
            self.asked.append(each)
            read = self._readers[each.lane % len(self._readers)](each)
            ahead.append(None if read is None else read)
            if len(ahead) > 3:
                yield ahead.pop(0)
        yield from ahead


def numbers(lengths: Sequence[int | None]) -> Source:
    """Lanes of so many batches, of which each is the pair of its lane and its index."""

    def read(wanted: LaneBatch) -> Any:
        length = lengths[wanted.lane]
        return None if length is not None and wanted.index >= length else (wanted.lane, wanted.index)

    return Source(Played([read]).read_all, len(lengths), True)


def take(source: Source, count: int) -> list[Any]:
    batches = source.batches()
    return [next(batches) for _ in range(count)]


def test_lanes_take_turns() -> None:
    assert take(numbers([None, None]), 5) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


@pytest.mark.parametrize("lengths", [(3, 1, 2), (0, 2), (0, 0), (1,), (0,), (2, 2, 2), (1, 5)])
def test_all_lanes_are_read_to_their_end(lengths: tuple[int, ...]) -> None:
    everything = [(lane, index) for lane, length in enumerate(lengths) for index in range(length)]
    assert list(numbers(lengths).batches()) == sorted(everything, key=lambda each: (each[1], each[0]))


@pytest.mark.parametrize("lengths", [(3, 1, 2), (None, None), (1, 5), (2, None)])
def test_a_turn_says_where_to_go_on(lengths: tuple[int | None, ...]) -> None:
    whole = take(numbers(lengths), 6)
    for position in range(6):
        first = numbers(lengths)
        take(first, position)
        rest = numbers(lengths)
        rest.seek(position, first.turn_at(position))
        assert take(rest, 6 - position) == whole[position:]


def test_steps_back_and_on_read_nothing_again() -> None:
    whole = take(numbers([None, None]), 9)
    played = Played([lambda wanted: (wanted.lane, wanted.index)])
    source = Source(played.read_all, 2, False)
    assert take(source, 4) == whole[:4]
    source.seek(3)
    assert source.turn_at(3) == 3
    assert take(source, 1) == whole[3:4]
    source.seek(4)
    assert take(source, 2) == whole[4:6]
    assert played.asked == sorted(
        played.asked, key=lambda each: (each.index, each.lane)
    )  # one after the other
    source.seek(1)  # too far back: read again
    assert take(source, 3) == whole[1:4]
    source.seek(7)  # ahead: what lies between is never asked for
    assert take(source, 2) == whole[7:9]


def test_a_failure_is_kept_for_who_can_tell_it() -> None:
    def read(wanted: LaneBatch) -> Any:
        raise UserError("no such file.")

    source = Source(Played([read]).read_all, 2, False)
    with pytest.raises(UserError, match="no such file"):
        take(source, 1)
    assert isinstance(source.failure, UserError)


def everything_that_is_sent() -> dict[str, Any]:
    return {
        "float": tf.constant([[1.5, np.nan], [np.inf, -0.0]]),
        "half": tf.constant([1.5, 2.5], tf.float16),
        "brain": tf.constant([1.5, 2.5], tf.bfloat16),
        "long": tf.constant([[1], [-(2**62)]], tf.int64),
        "unsigned": tf.constant([255, 0], tf.uint8),
        "flag": tf.constant([True, False]),
        "complex": tf.constant([1 + 2j, 0]),
        "text": tf.constant([["a\0", ""], ["ü\0\0", "b"]]),
        "scalar": tf.constant(7),
        "word": tf.constant("x"),
        "empty": tf.zeros([2, 0]),
        "sparse": tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]]),
        "ragged": tf.ragged.constant([["a"], ["b", "c", "d"]]),
        "pair": (tf.constant([1, 2]), tf.constant([3.0, 4.0])),
    }


def test_every_kind_of_tensor_arrives_as_it_was(tmp_path: Path) -> None:
    def input_fn() -> Any:
        return tf.data.Dataset.from_tensors(everything_that_is_sent()).repeat(3)

    estimator = est.Estimator(lambda features: None, str(tmp_path))
    lanes = Lanes(estimator, input_fn, 1)
    read = lanes.read(LaneBatch(0, 1, 2))
    assert read is not None
    assert read[1] == 2
    assert lanes.read(LaneBatch(0, 1, 3)) is None
    lanes.close()
    assert all(value.dtype.kind in "biufc" for value in read[0])
    with tf.Graph().as_default():
        spec = tf.data.Dataset.from_tensors(everything_that_is_sent()).element_spec
        received = receive(lambda: iter([read[0]]), spec)
        assert received.element_spec == spec
        iterator = v1.data.make_initializable_iterator(received)
        batch = iterator.get_next()
        with v1.Session() as session:
            session.run(iterator.initializer)
            found, sent = session.run([batch, everything_that_is_sent()])
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(batch)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(sent), strict=True):
        if isinstance(other, v1.SparseTensorValue | v1.ragged.RaggedTensorValue):
            assert repr(one) == repr(other)
        else:
            np.testing.assert_array_equal(one, other)
            assert np.asarray(one).dtype == np.asarray(other).dtype


def test_a_dataset_in_a_batch_is_refused() -> None:
    windows = tf.data.Dataset.range(4).window(2)
    with pytest.raises(UserError, match="such as a dataset, which cannot be sent"):
        flat_specs(windows.element_spec)


def test_a_task_that_sees_other_data_is_told_so(tmp_path: Path) -> None:
    def seeing(number: int) -> Any:
        return lambda: tf.data.Dataset.from_tensor_slices(list(range(number))).batch(2)

    estimator = est.Estimator(lambda features: None, str(tmp_path))
    with tf.Graph().as_default():
        mine = take_fingerprint(seeing(8)(), seeing(8))
    assert Lanes(estimator, seeing(8), 1).read(LaneBatch(0, 1, 0, mine)) is not None
    with pytest.raises(UserError, match="builds another pipeline here") as caught:
        Lanes(estimator, seeing(6), 1).read(LaneBatch(0, 1, 0, mine))
    assert "same files" in caught.value.cure


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    estimator = est.Estimator(lambda features: None, str(tmp_path))
    with pytest.raises(UserError, match="does not return a dataset"):
        Lanes(estimator, lambda: tf.constant([1.0]), 1).read(LaneBatch(0, 1, 0))


def test_samples_are_counted_by_what_most_tensors_say() -> None:
    values = [np.zeros([4, 2]), np.zeros([4]), np.zeros([9]), np.float32(1), b"text"]
    assert count_samples(values) == 4
    assert count_samples([np.float32(1)]) == 1
    assert values_to_send([b"ab"])[0].tolist() == [97, 98]


# -- a training ------------------------------------------------------------------------------------------------


def unseeded_input_fn() -> Any:
    """Drawn at random twice, with no seed but the graph's."""
    data = tf.data.Dataset.range(48).shuffle(48)
    data = data.map(lambda x: tf.cast(x, tf.float32) / 48 + tf.random.uniform([], 0, 0.01))
    return data.map(lambda x: ([x, 1.0], [x * x])).repeat().batch(4, drop_remainder=True)


def sharing_input_fn(input_context: Any = None) -> Any:
    data = tf.data.Dataset.range(42)
    if input_context is not None:
        data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return data.map(lambda x: ([tf.cast(x, tf.float32) / 42, 1.0], [0.5])).batch(4)


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    hidden = tf.nn.dropout(tf.keras.layers.Dense(6, name="hidden")(features), 0.2)
    loss = tf.reduce_mean((tf.keras.layers.Dense(1, name="out")(hidden) - labels) ** 2)
    step = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return est.EstimatorSpec(mode, loss=loss, train_op=step)


def train(
    folder: Path, input_fn: Any, steps: Sequence[int], source: Source | None = None
) -> tuple[est.Estimator, list[str]]:
    notes: list[str] = []
    losses: list[float] = []
    monitor = Monitor(
        on_log=lambda step, values, all_losses: losses.extend(all_losses),
        log_steps=1,
        continues_input=True,
        source=source,
    )
    monitor.note = notes.append  # type: ignore[method-assign]
    config = est.RunConfig(str(folder), tf_random_seed=5, save_checkpoints_steps=4, log_step_count_steps=None)
    estimator = est.Estimator(model_fn, config=config)
    with watching(monitor):
        for end in steps:
            tf.keras.utils.set_random_seed(5)
            estimator.train(input_fn, max_steps=end)
    return estimator, notes


def assert_same(one: est.Estimator, other: est.Estimator) -> None:
    names = one.get_variable_names()
    assert names == other.get_variable_names()
    for name in names:
        np.testing.assert_array_equal(one.get_variable_value(name), other.get_variable_value(name), name)


def played(folder: Path, input_fn: Any, num_lanes: int) -> tuple[Source, Played]:
    config = est.RunConfig(str(folder), tf_random_seed=5)
    estimator = est.Estimator(model_fn, config=config)
    readers = [Lanes(estimator, input_fn, 5) for _ in range(num_lanes)]

    def reading(lanes: Lanes) -> Callable[[LaneBatch], Any]:
        def read(wanted: LaneBatch) -> Any:
            found = lanes.read(wanted)
            return None if found is None else found[0]

        return read

    play = Played([reading(lanes) for lanes in readers])
    return Source(play.read_all, num_lanes, input_fn is sharing_input_fn), play


def test_a_training_through_lanes_is_one_that_reads_by_itself(tmp_path: Path) -> None:
    """Also with an evaluation's pause in it, and where one way goes on after the other, either way round."""
    alone, _ = train(tmp_path / "alone", unseeded_input_fn, [20])
    source, play = played(tmp_path / "lanes", unseeded_input_fn, 3)
    streamed, notes = train(tmp_path / "lanes", unseeded_input_fn, [7, 14, 20], source)
    assert_same(alone, streamed)
    assert notes == []
    assert len(play.asked) == len({(each.lane, each.index) for each in play.asked})  # no pause reads again
    mixed, _ = train(tmp_path / "mixed", unseeded_input_fn, [6])
    mixed, notes = train(
        tmp_path / "mixed", unseeded_input_fn, [13], played(tmp_path, unseeded_input_fn, 2)[0]
    )
    assert notes == []
    mixed, notes = train(tmp_path / "mixed", unseeded_input_fn, [20])
    assert "other tasks read it" in notes[0]
    assert_same(alone, mixed)


def test_data_that_the_input_function_shares_out_go_on_where_they_were(tmp_path: Path) -> None:
    """42 samples in 4 lanes are 3 batches in each, the last ones short: 12 in all, and then the data end."""
    whole, _ = train(tmp_path / "whole", sharing_input_fn, [20], played(tmp_path, sharing_input_fn, 4)[0])
    assert whole.get_variable_value("global_step") == 12
    train(tmp_path / "parts", sharing_input_fn, [5], played(tmp_path, sharing_input_fn, 4)[0])
    parts, notes = train(tmp_path / "parts", sharing_input_fn, [20], played(tmp_path, sharing_input_fn, 4)[0])
    assert_same(whole, parts)
    assert notes == []
    train(tmp_path / "others", sharing_input_fn, [5], played(tmp_path, sharing_input_fn, 4)[0])
    _, notes = train(tmp_path / "others", sharing_input_fn, [6], played(tmp_path, sharing_input_fn, 2)[0])
    assert len(notes) == 1
    assert "starts from the beginning" in notes[0]
