"""Marks of where lanes were: who takes a lane over goes on from one, and nothing but time is lost without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import portwright.tensorflow as est
from portwright.tensorflow import stream_marks
from portwright.tensorflow.input_state import InputState
from portwright.tensorflow.stream_lanes import LaneBatch, Lanes
from portwright.tensorflow.stream_marks import Marks


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark as often as the number of batches asks for it."""
    monkeypatch.setattr(stream_marks, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(stream_marks, "_PAUSE_FACTOR", 0)


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were drawn and dropped, each time."""
    numbers: list[int] = []
    skip = InputState.skip

    def counted(self: Any, session: Any, num_batches: int) -> int:
        numbers.append(num_batches)
        return skip(self, session, num_batches)

    monkeypatch.setattr(InputState, "skip", counted)
    return numbers


def shuffled() -> Any:
    return tf.data.Dataset.range(60).shuffle(60).repeat().batch(3)


def other() -> Any:
    return tf.data.Dataset.range(60).shuffle(50).repeat().batch(3)


def generated() -> Any:
    def numbers() -> Any:
        yield from range(300)

    return tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)).batch(3)


def make_lanes(folder: Path, input_fn: Any, notes: list[str] | None = None, every: int = 10) -> Lanes:
    estimator = est.Estimator(lambda features: None, config=est.RunConfig(str(folder), tf_random_seed=3))
    return Lanes(estimator, input_fn, 3, Marks(folder, every, (notes if notes is not None else []).append))


def read(lanes: Lanes, indices: Any, lane: int = 1) -> list[Any]:
    found = [lanes.read(LaneBatch(lane, 2, index)) for index in indices]
    return [None if each is None else each[0][0].tolist() for each in found]


def test_a_lane_goes_on_from_its_newest_mark(tmp_path: Path, skipped: list[int]) -> None:
    whole = read(make_lanes(tmp_path / "nowhere", shuffled), range(48))
    assert read(make_lanes(tmp_path, shuffled), range(32)) == whole[:32]
    assert sorted(path.name for path in tmp_path.rglob("step-*")) == [
        "step-15",
        "step-20",
        "step-25",
        "step-30",
    ]
    for index, dropped in ((47, [17]), (30, []), (29, [4]), (16, [1]), (14, [14]), (0, [])):
        skipped.clear()
        assert read(make_lanes(tmp_path, shuffled), [index]) == whole[index : index + 1]
        assert skipped == dropped, index
    skipped.clear()
    others = read(make_lanes(tmp_path, shuffled), [30], lane=0)
    assert others != whole[30:31]
    assert skipped == [30]


def test_marks_of_another_pipeline_and_damaged_ones_are_passed_over(
    tmp_path: Path, skipped: list[int]
) -> None:
    whole = read(make_lanes(tmp_path / "nowhere", shuffled), range(32))
    read(make_lanes(tmp_path, shuffled), range(32))
    for name, change in (("step-30", b"no more"), ("step-25", None)):
        state = next(tmp_path.rglob(name)) / "iterator-0"
        state.unlink() if change is None else state.write_bytes(change)
    assert read(make_lanes(tmp_path, shuffled), [31]) == whole[31:]
    assert skipped == [11]
    skipped.clear()
    read(make_lanes(tmp_path, other), [31])
    assert skipped == [31]


def test_a_training_that_begins_has_no_marks(tmp_path: Path) -> None:
    lanes = make_lanes(tmp_path, shuffled)
    read(lanes, range(12))
    assert lanes.marks is not None
    lanes.marks.clear()
    assert list(tmp_path.rglob("step-*")) == []
    lanes.marks.clear()


def test_what_cannot_say_where_it_is_leaves_no_mark(tmp_path: Path, skipped: list[int]) -> None:
    notes: list[str] = []
    assert read(make_lanes(tmp_path, generated, notes), range(12))[11] == [69, 70, 71]
    assert list(tmp_path.rglob("step-*")) == []
    assert read(make_lanes(tmp_path, generated, notes), [11]) == [[69, 70, 71]]
    assert skipped == [11]
    assert notes == []


def test_a_folder_that_takes_no_marks_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "lanes").write_text("in the way")
    notes: list[str] = []
    found = read(make_lanes(tmp_path, shuffled, notes), range(32))
    assert len(notes) == 1
    assert "cannot be kept" in notes[0]
    np.testing.assert_array_equal(found, read(make_lanes(tmp_path / "nowhere", shuffled), range(32)))
