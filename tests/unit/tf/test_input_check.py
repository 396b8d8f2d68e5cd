"""Pipelines that are right have no findings; each fault is found at its own line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.input_check.check import InputReport, check_input
from portwright.tensorflow.input_check.measure import measure_pipeline, measure_step

AUTO = tf.data.AUTOTUNE
HERE = Path(__file__)


def samples(count: int = 100) -> Any:
    return tf.data.Dataset.from_tensor_slices((np.zeros((count, 3), np.float32), np.zeros(count, np.int32)))


def files(folder: Path, count: int = 3) -> list[str]:
    for number in range(count):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for value in range(10):
                writer.write(np.float32(value).tobytes())
    return sorted(str(path) for path in folder.glob("*.tfrecord"))


def parse(text: Any) -> Any:
    return tf.reshape(tf.io.decode_raw(text, tf.float32), [1])


def right_in_memory() -> Any:
    data = samples().shard(1, 0).cache().shuffle(100).repeat().batch(8, drop_remainder=True)
    return data.map(lambda x, y: (x + 1, y), num_parallel_calls=AUTO).prefetch(AUTO)


GOOD: dict[str, Callable[[], Any]] = {
    "in memory": right_in_memory,
    "map and batch": lambda: (
        samples()
        .shuffle(100)
        .repeat()
        .apply(tf.data.experimental.map_and_batch(lambda x, y: (x, y), 8, drop_remainder=True))
        .prefetch(1)
    ),
    "shuffle and repeat": lambda: (
        samples()
        .apply(tf.data.experimental.shuffle_and_repeat(100))
        .batch(8, drop_remainder=True)
        .prefetch(1)
    ),
    "options last": lambda: right_in_memory().with_options(tf.data.Options()),
    "of version 1": lambda: (
        tf.compat.v1.data.Dataset.from_tensor_slices(np.zeros((9, 2), np.float32))
        .shuffle(9)
        .repeat()
        .batch(3, drop_remainder=True)
        .prefetch(1)
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_right_pipeline_has_no_finding(name: str) -> None:
    assert check_input(GOOD[name], num_workers=1).findings == ()


def test_files_read_in_the_right_order(tmp_path: Path) -> None:
    names = files(tmp_path)

    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensor_slices(names).shard(2, 1).shuffle(2)
        data = data.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=AUTO)
        data = data.cache().shuffle(100).repeat().batch(2, drop_remainder=True)
        return data.map(lambda x: tf.ensure_shape(tf.io.decode_raw(x, tf.float32), [2, 1]), AUTO).prefetch(2)

    report = check_input(input_fn, num_workers=2)
    assert report.findings == ()
    kinds = [stage.kind for stage in report.stages]
    assert kinds == [
        "tensors", "shard", "shuffle", "interleave", "cache", "shuffle", "repeat", "batch", "map", "prefetch"
    ]  # fmt: skip
    assert report.batch_size == 2


def _by(name: str, wrong: Callable[[], Any]) -> Any:
    return pytest.param(name, wrong, id=name)


WRONG = [
    _by("kept-remainder", lambda: samples().shuffle(100).repeat().batch(8).prefetch(1)),
    _by("kept-remainder", lambda: samples().shuffle(100).repeat().padded_batch(8, ([3], [])).prefetch(1)),
    _by("missing-batch", lambda: samples().shuffle(100).repeat().prefetch(1)),
    _by("shuffle-after-batch", lambda: samples().batch(8, drop_remainder=True).shuffle(9).repeat().prefetch(1)),
    _by("repeat-before-shuffle", lambda: samples().repeat().shuffle(100).batch(8, True).prefetch(1)),
    _by("cache-after-repeat", lambda: samples().repeat().cache().shuffle(100).batch(8, True).prefetch(1)),
    _by("cache-after-shuffle", lambda: samples().shuffle(100).cache().repeat().batch(8, True).prefetch(1)),
    _by(
        "cache-after-draw",
        lambda: (
            samples()
            .map(lambda x, y: (x + tf.random.uniform([3]), y), AUTO)
            .cache()
            .shuffle(100)
            .repeat()
            .batch(8, True)
            .prefetch(1)
        ),
    ),
    _by("missing-prefetch", lambda: samples().shuffle(100).repeat().batch(8, True)),
    _by("early-prefetch", lambda: samples().shuffle(100).repeat().prefetch(1).batch(8, True)),
    _by("missing-shuffle", lambda: samples().repeat().batch(8, True).prefetch(1)),
    _by("missing-repeat", lambda: samples().shuffle(100).batch(8, True).prefetch(1)),
    _by("small-shuffle", lambda: samples().shuffle(10).repeat().batch(8, True).prefetch(1)),
    _by("small-shuffle", lambda: samples(2).shuffle(1).repeat().batch(8, True).prefetch(1)),
    _by(
        "same-shuffle",
        lambda: samples().shuffle(100, reshuffle_each_iteration=False).repeat().batch(8, True).prefetch(1),
    ),
    _by("shard-after-shuffle", lambda: samples().shuffle(100).shard(2, 0).repeat().batch(8, True).prefetch(1)),
    _by(
        "shard-after-batch",
        lambda: samples().batch(8, True).shard(2, 0).unbatch().shuffle(100).repeat().batch(8, True).prefetch(1),
    ),
    _by(
        "map-one-by-one",
        lambda: samples().shuffle(100).repeat().batch(8, True).map(lambda x, y: (x, y)).prefetch(1),
    ),
    _by(
        "map-before-batch",
        lambda: samples().map(lambda x, y: (x, y), AUTO).shuffle(100).repeat().batch(8, True).prefetch(1),
    ),
    _by(
        "python-in-pipeline",
        lambda: (
            samples()
            .map(lambda x, y: (tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), [3]), y), AUTO)
            .shuffle(100)
            .repeat()
            .batch(8, True)
            .prefetch(1)
        ),
    ),
    _by(
        "python-in-pipeline",
        lambda: (
            tf.data.Dataset.from_generator(
                lambda: iter([[1.0]]), output_signature=tf.TensorSpec([1], tf.float32)
            )
            .shuffle(9)
            .repeat()
            .batch(8, True)
            .prefetch(1)
        ),
    ),
    _by(
        "order-by-chance",
        lambda: (
            samples()
            .shuffle(100)
            .repeat()
            .batch(8, True)
            .map(lambda x, y: (x, y), AUTO, deterministic=False)
            .prefetch(1)
        ),
    ),
    _by(
        "unknown-batch-size",
        lambda: (
            samples()
            .shuffle(100)
            .repeat()
            .batch(8, True)
            .map(lambda x, y: tf.boolean_mask(x, x[:, 0] > 0), AUTO)
            .prefetch(1)
        ),
    ),
    _by(
        "text-in-batch",
        lambda: (
            samples().shuffle(100).repeat().batch(8, True).map(lambda x, y: tf.strings.as_string(x), AUTO).prefetch(1)
        ),
    ),
    _by(
        "wide-type",
        lambda: (
            samples().shuffle(100).repeat().batch(8, True).map(lambda x, y: (x, tf.cast(y, tf.int64)), AUTO).prefetch(1)
        ),
    ),
    _by("ragged-batch", lambda: _lengths().apply(tf.data.experimental.dense_to_ragged_batch(3, True)).prefetch(1)),
    _by("unknown-shape", lambda: _lengths().padded_batch(3, [None], drop_remainder=True).prefetch(1)),
]  # fmt: skip


def _lengths() -> Any:
    return tf.data.Dataset.range(9).map(lambda n: tf.range(n), AUTO).shuffle(9).repeat()


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_fault_is_found(name: str, wrong: Callable[[], Any]) -> None:
    found = [finding for finding in check_input(wrong).findings if finding.name == name]
    assert len(found) == 1
    assert found[0].place is not None
    assert found[0].place.file == str(HERE)
    assert found[0].cure


def test_the_line_is_that_of_the_stage() -> None:
    def input_fn() -> Any:
        data = samples().shuffle(100).repeat()
        data = data.batch(8)
        return data.prefetch(1)

    start = input_fn.__code__.co_firstlineno
    (finding,) = check_input(input_fn).findings
    assert (finding.name, finding.place and finding.place.line) == ("kept-remainder", start + 2)


def test_evaluation_data_need_neither_shuffle_nor_repeat() -> None:
    report = check_input(lambda: samples().batch(10, drop_remainder=True).prefetch(1), is_training=False)
    assert report.findings == ()


def test_files_one_by_one_and_shards_after_reading(tmp_path: Path) -> None:
    names = files(tmp_path)

    def input_fn() -> Any:
        data = tf.data.TFRecordDataset(names).shard(2, 0).map(parse, AUTO).shuffle(100).repeat()
        return data.batch(2, drop_remainder=True).prefetch(1)

    found = {finding.name for finding in check_input(input_fn, num_workers=2).findings}
    assert {"files-one-by-one", "shard-after-reading"} <= found


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (right_in_memory, "other-shards"),
        (lambda: samples().shuffle(100).repeat().batch(8, True).prefetch(1), "missing-shard"),
    ],
)
def test_several_workers_need_their_shares(make: Callable[[], Any], name: str) -> None:
    found = check_input(make, num_workers=4).findings
    assert [finding.name for finding in found if finding.severity == "error"] == [name]


def test_what_joins_from_the_side_is_looked_at_too() -> None:
    def input_fn() -> Any:
        other = samples().repeat().cache()
        data = tf.data.Dataset.zip((samples().shuffle(100), other)).repeat()
        return data.batch(8, drop_remainder=True).prefetch(1)

    assert "cache-after-repeat" in {finding.name for finding in check_input(input_fn).findings}


def test_the_report_as_json() -> None:
    report: InputReport = check_input(lambda: samples().batch(8))
    told = report.as_dict()
    assert told["batch_size"] is None
    assert told["elements"] == ["features: float32 [None, 3]", "labels: int32 [None]"]
    assert {"name", "severity", "path", "line", "message", "cure"} == told["findings"][0].keys()


@pytest.mark.parametrize("made", [None, (1, 2), {"x": np.zeros(3)}])
def test_anything_but_a_dataset_is_refused(made: Any) -> None:
    with pytest.raises(UserError, match="instead of a dataset"):
        check_input(lambda: made)


def test_speed_is_measured_to_the_end_of_the_data() -> None:
    told = measure_pipeline(lambda: samples(40).batch(8), seconds=60)
    assert (told["batches"], told["ended"]) == (5, True)
    assert told["samples_per_second"] > 0


def test_an_empty_dataset_has_no_speed() -> None:
    with pytest.raises(UserError, match="empty"):
        measure_pipeline(lambda: samples(4).batch(8, drop_remainder=True), seconds=1)


def test_a_step_is_measured_on_one_batch() -> None:
    def train_op(batch: Any) -> Any:
        weights = tf.compat.v1.get_variable("w", [3, 1])
        loss = tf.reduce_mean(tf.matmul(batch[0], weights))
        return tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    told = measure_step(lambda: samples().batch(8, drop_remainder=True), train_op, seconds=0)
    assert told["steps"] == 2
    assert told["samples_per_second"] > 0


@pytest.fixture
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder's model.py is not that of a folder before it: a command is a process of its own, a test is not."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = ("model", "data", "utils")
    for name in names:
        sys.modules.pop(name, None)
    yield
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_own_modules")
def test_the_command_checks_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from portwright.job.model_list import make_model_folder
    from portwright.tensorflow.input_check.command import check_and_print

    folder = make_model_folder(tmp_path / "mine", "tensorflow", None)
    assert check_and_print(str(folder), None, [], "train", 1, True, 0.01, False)
    shown = capsys.readouterr().out
    assert "train_input_fn: tensors -> shuffle(1437) -> batch(64)" in shown
    assert "samples/s" in shown
    assert not check_and_print(str(folder), None, ["train_input.drop_last=false"], "train", 1, False, 1, True)
    assert '"kept-remainder"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "workers", "message"), [("training", 1, "unknown mode"), ("train", 0, "--workers")]
)
def test_a_command_that_makes_no_sense(mode: str, workers: int, message: str) -> None:
    from portwright.tensorflow.input_check.command import check_and_print

    with pytest.raises(UserError, match=message):
        check_and_print("tensorflow/fc_mnist", None, [], mode, workers, False, 1, False)
