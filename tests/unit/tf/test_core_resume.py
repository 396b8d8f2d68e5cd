"""A training that was cut anywhere goes on exactly as if it had not been."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from portwright.errors import UserError
from portwright.job.console import Console
from portwright.job.signals import StopSignals
from portwright.tensorflow import Estimator, EstimatorSpec, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from portwright.tensorflow.checkpoints import find_damage, newest_checkpoint
from portwright.tensorflow.monitor import Monitor, watching
from portwright.tensorflow.resume_point import read_point

v1 = tf.compat.v1
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(23, 4).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    weights = v1.get_variable("w", [4, 8])
    hidden = tf.nn.dropout(tf.matmul(features, weights), rate=0.4)
    hidden = hidden + tf.random.normal([8], stddev=0.1)
    output = tf.keras.layers.Dense(1)(tf.keras.layers.Dropout(0.2)(hidden, training=True))
    loss = v1.losses.sigmoid_cross_entropy(labels, output)
    train_op = v1.train.AdamOptimizer(0.05).minimize(loss, global_step=v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def slices() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled() -> tf.data.Dataset:
    return slices().shuffle(7).repeat().batch(4, drop_remainder=True).prefetch(2)


def uneven() -> tf.data.Dataset:
    return slices().shuffle(7).batch(5).repeat()  # the last batch of an epoch is smaller


def randomised() -> tf.data.Dataset:
    return slices().map(lambda x, y: (x + tf.random.normal([4], seed=5), y)).repeat().batch(4)


def generated() -> tf.data.Dataset:
    def rows() -> Iterator[Any]:
        for index in range(1000):
            yield X[index % 23], Y[index % 23]

    signature = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([1], tf.float32))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(4)


def one_shot() -> Any:
    return v1.data.make_one_shot_iterator(shuffled()).get_next()


class Record(v1.train.SessionRunHook):  # type: ignore[misc]
    """Keeps the losses by step, and fails after the step named."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.losses: dict[int, float] = {}
        self._fail_at = fail_at

    def begin(self) -> None:
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        with tf.control_dependencies([self._loss]):
            self._step = v1.train.get_global_step().read_value()

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs([self._loss])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_context.session.run(v1.train.get_global_step()))
        self.losses[step] = float(run_values.results[0])
        if step == self._fail_at:
            raise InterruptedError("killed")


def train(
    folder: Path, input_fn: Callable[[], Any], fail_at: int | None = None, **config: Any
) -> dict[int, float]:
    settings = {"tf_random_seed": 7, "save_checkpoints_steps": 4, **config}
    record = Record(fail_at)
    estimator = Estimator(model_fn, str(folder), RunConfig(**settings))
    try:
        estimator.train(input_fn, hooks=[record], max_steps=12)
    except InterruptedError:
        assert fail_at is not None
    return record.losses


def copy_start(source: Path, target: Path) -> None:
    """Keras draws initial values anew in each graph; both runs begin with the same."""
    target.mkdir()
    for path in source.glob("model.ckpt-0.*"):
        (target / path.name).write_bytes(path.read_bytes())
    (target / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n', encoding="utf-8")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    train(folder, shuffled, fail_at=1)
    return folder


@pytest.fixture(scope="module")
def whole(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float]]:
    """A training that nothing interrupted, and its losses."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    copy_start(start, folder)
    return folder, train(folder, shuffled)


@pytest.mark.parametrize("input_fn", [uneven, randomised, generated, one_shot])
@pytest.mark.filterwarnings("ignore:Seed")
def test_interrupted_equals_uninterrupted(input_fn: Callable[[], Any], start: Path, tmp_path: Path) -> None:
    copy_start(start, tmp_path / "whole")
    copy_start(start, tmp_path / "cut")
    losses = train(tmp_path / "whole", input_fn)
    assert sorted(losses) == list(range(1, 13))
    first = train(tmp_path / "cut", input_fn, fail_at=6)
    second = train(tmp_path / "cut", input_fn)
    assert min(second) == 5
    assert {**first, **second} == losses


def test_interrupted_twice_equals_uninterrupted(
    whole: tuple[Path, dict[int, float]], start: Path, tmp_path: Path
) -> None:
    copy_start(start, tmp_path / "cut")
    parts = [train(tmp_path / "cut", shuffled, fail_at) for fail_at in (6, 9, None)]
    assert [min(part) for part in parts] == [1, 5, 9]
    assert {step: loss for part in parts for step, loss in part.items()} == whole[1]
    for name in ("w", "dense/kernel", "beta1_power"):
        one, other = (
            tf.train.load_variable(str(folder / "model.ckpt-12"), name)
            for folder in (whole[0], tmp_path / "cut")
        )
        assert np.array_equal(one, other)


def test_without_a_seed_runs_differ_but_a_resumed_one_goes_on(start: Path, tmp_path: Path) -> None:
    losses = []
    for name in ("one", "two"):
        copy_start(start, tmp_path / name)
        first = train(tmp_path / name, shuffled, fail_at=7, tf_random_seed=None)
        second = train(tmp_path / name, shuffled, fail_at=7, tf_random_seed=None)
        assert second == {step: loss for step, loss in first.items() if step > 4}
        losses.append(first)
    assert losses[0] != losses[1]


def test_a_training_that_ended_starts_its_input_anew_as_tf_estimator_does(
    start: Path, tmp_path: Path
) -> None:
    def two_batches() -> tf.data.Dataset:
        return slices().take(8).batch(4)

    copy_start(start, tmp_path / "one")
    estimator = Estimator(
        model_fn, str(tmp_path / "one"), RunConfig(tf_random_seed=7, save_checkpoints_steps=2)
    )
    for step in (2, 4):
        estimator.train(two_batches)
        assert estimator.get_variable_value("global_step") == step


def test_a_monitor_can_have_the_input_go_on(
    whole: tuple[Path, dict[int, float]], start: Path, tmp_path: Path
) -> None:
    copy_start(start, tmp_path / "parts")
    parts: dict[int, float] = {}
    with watching(Monitor(continues_input=True)):
        for max_steps in (4, 7, 12):
            record = Record()
            config = RunConfig(tf_random_seed=7, save_checkpoints_steps=4)
            estimator = Estimator(model_fn, str(tmp_path / "parts"), config)
            estimator.train(shuffled, hooks=[record], max_steps=max_steps)
            parts.update(record.losses)
    assert parts == whole[1]


def test_points_go_with_their_checkpoints(whole: tuple[Path, dict[int, float]], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "one")
    for path in (tmp_path / "one").glob("model.ckpt-4.*"):
        path.unlink()
    with watching(Monitor()):
        Estimator(model_fn, str(tmp_path / "one"), RunConfig(tf_random_seed=7)).train(shuffled, steps=1)
    assert sorted(path.name for path in (tmp_path / "one" / "resume").iterdir()) == [
        "step-12",
        "step-13",
        "step-8",
    ]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no index", "empty index", "no data", "bad list"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_used(
    damage: str, whole: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    shutil.copytree(whole[0], folder)
    data = folder / "model.ckpt-12.data-00000-of-00001"
    index = folder / "model.ckpt-12.index"
    expected = str(folder / "model.ckpt-8")
    if damage == "truncated":
        data.write_bytes(data.read_bytes()[:-20])
    elif damage == "flipped":
        data.write_bytes(bytes([data.read_bytes()[0] ^ 255]) + data.read_bytes()[1:])
    elif damage == "no index":
        index.unlink()
    elif damage == "empty index":
        index.write_bytes(b"")
    elif damage == "no data":
        data.unlink()
    else:
        (folder / "checkpoint").write_text("model_chec", encoding="utf-8")
        expected = str(folder / "model.ckpt-12")
    notes: list[str] = []
    assert newest_checkpoint(str(folder), notes.append) == expected
    if damage == "bad list":
        assert "cannot be read; going by the files" in notes[0]
    else:
        assert "model.ckpt-12 is damaged" in notes[0]
        assert "model.ckpt-8 instead" in notes[1]


def test_training_goes_on_exactly_from_the_checkpoint_before_a_damaged_one(
    whole: tuple[Path, dict[int, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole[0], tmp_path / "one")
    (tmp_path / "one" / "model.ckpt-12.index").write_bytes(b"")
    (tmp_path / "one" / "model.ckpt-12_temp").mkdir()  # of a save that was killed
    with watching(Monitor(console=Console())):
        again = train(tmp_path / "one", shuffled)
    assert "model.ckpt-12 is damaged" in capsys.readouterr().err
    assert again == {step: loss for step, loss in whole[1].items() if step > 8}
    assert find_damage(str(tmp_path / "one" / "model.ckpt-12")) is None
    assert not (tmp_path / "one" / "model.ckpt-12_temp").exists()


def test_when_all_checkpoints_are_damaged_nothing_is_overwritten(start: Path, tmp_path: Path) -> None:
    copy_start(start, tmp_path / "one")
    (tmp_path / "one" / "model.ckpt-0.index").write_bytes(b"")
    with pytest.raises(UserError, match="None of the 1 checkpoints"):
        train(tmp_path / "one", shuffled)


@pytest.mark.parametrize("damage", ["not json", "checksum", "other keys", "elsewhere"])
def test_a_damaged_point_starts_the_input_from_the_beginning_and_says_so(
    damage: str, whole: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    shutil.copytree(whole[0] / "resume", tmp_path / "resume")
    point = tmp_path / "resume" / "step-12" / "point.json"
    notes: list[str] = []
    assert read_point(str(tmp_path), 12, notes.append) is not None
    assert read_point(str(tmp_path), 3, notes.append) is None
    assert not notes
    if damage == "not json":
        point.write_text("{", encoding="utf-8")
    elif damage == "checksum":
        (tmp_path / "resume" / "step-12" / "iterator-0").write_bytes(b"x")
    elif damage == "other keys":
        point.write_text('{"drawn": {}, "states": []}', encoding="utf-8")
    else:
        point.write_text(point.read_text(encoding="utf-8").replace("iterator-0", "../x"), encoding="utf-8")
    assert read_point(str(tmp_path), 12, notes.append) is None
    assert "starts from the beginning" in notes[0]


def test_another_pipeline_starts_from_its_beginning_and_says_so(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_start(start, tmp_path / "one")
    train(tmp_path / "one", shuffled, fail_at=5)
    with watching(Monitor(console=Console())):
        train(tmp_path / "one", uneven)
    assert "not the one of the checkpoint" in capsys.readouterr().err


def test_a_signal_saves_and_the_next_run_goes_on(
    whole: tuple[Path, dict[int, float]], start: Path, tmp_path: Path
) -> None:
    class Ask(Record):
        def __init__(self, signals: StopSignals) -> None:
            super().__init__()
            self._signals = signals

        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            self._signals.requested = max(self.losses) == 6

    copy_start(start, tmp_path / "cut")
    signals = StopSignals()
    record = Ask(signals)
    with watching(Monitor(signals=signals)):
        estimator = Estimator(
            model_fn, str(tmp_path / "cut"), RunConfig(tf_random_seed=7, save_checkpoints_steps=4)
        )
        estimator.train(shuffled, hooks=[record], max_steps=12)
    assert estimator.get_variable_value("global_step") == 6
    assert {**record.losses, **train(tmp_path / "cut", shuffled)} == whole[1]


@pytest.mark.parametrize(
    ("number", "error", "status"),
    [(signal.SIGTERM, SystemExit, 85), (signal.SIGINT, KeyboardInterrupt, None)],
)
def test_a_script_that_gets_a_signal_saves_and_ends(
    number: int, error: type[BaseException], status: int | None, start: Path, tmp_path: Path
) -> None:
    class Kill(Record):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            if max(self.losses) == 3:
                os.kill(os.getpid(), number)

    copy_start(start, tmp_path / "one")
    before = signal.getsignal(number)
    estimator = Estimator(model_fn, str(tmp_path / "one"), RunConfig(tf_random_seed=7))
    with pytest.raises(error) as caught:
        estimator.train(shuffled, hooks=[Kill()], max_steps=12)
    assert getattr(caught.value, "code", None) == status
    assert estimator.get_variable_value("global_step") == 3
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("verb", ["evaluate", "predict", "train_and_evaluate"])
def test_a_signal_ends_an_evaluation_at_its_next_batch(verb: str, tmp_path: Path) -> None:
    """Also one within a training, and one that came before any Estimator noticed signals, as `portwright run` catches them."""
    seen = []

    def rows() -> Iterator[Any]:
        for index in range(1000):
            seen.append(index)
            if index == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield X[:4], Y[:4]

    def watched_input() -> Any:
        signature = (tf.TensorSpec([4, 4], tf.float32), tf.TensorSpec([4, 1], tf.float32))
        return tf.data.Dataset.from_generator(rows, output_signature=signature)

    def predicting(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        return (
            model_fn(features, labels, mode) if mode != "infer" else EstimatorSpec(mode, predictions=features)
        )

    estimator = Estimator(predicting, str(tmp_path), RunConfig(tf_random_seed=7, save_checkpoints_steps=4))

    def ask() -> None:
        if verb == "train_and_evaluate":
            evaluated = EvalSpec(watched_input, steps=None, throttle_secs=0)
            train_and_evaluate(estimator, TrainSpec(shuffled, max_steps=8), evaluated)
        with StopSignals():
            estimator.evaluate(watched_input) if verb == "evaluate" else list(
                estimator.predict(watched_input)
            )

    with pytest.raises(SystemExit) as caught:
        ask()
    assert caught.value.code == 85
    assert 3 in seen
    assert len(seen) < 10
    if verb == "train_and_evaluate":
        assert estimator.get_variable_value("global_step") == 4


def test_an_input_without_a_position_resumes_in_silence_and_a_queue_with_a_word(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def constant() -> Any:
        return tf.constant(X), tf.constant(Y)

    def queue() -> Any:
        x, y = v1.train.slice_input_producer([tf.constant(X), tf.constant(Y)], shuffle=False)
        return v1.train.batch([x, y], 4)

    for name, input_fn in (("constant", constant), ("queue", queue)):
        copy_start(start, tmp_path / name)
        first = train(tmp_path / name, input_fn, fail_at=6)
        second = train(tmp_path / name, input_fn)
        told = capsys.readouterr().err
        if name == "constant":
            assert (second[5], second[6]) == (first[5], first[6])
        assert ("position cannot be restored" in told) == (name == "queue")
