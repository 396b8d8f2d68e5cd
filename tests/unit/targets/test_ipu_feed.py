"""Batches put together to calls: order, short batches, shapes and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.runtime.fixed_shape import check_constants, signature_of
from portwright.targets.ipu.step import TrainingFeed, join


def make_feed(
    num_samples: int, batch_size: int, per_call: int, notes: list[str] | None = None
) -> tuple[TrainingFeed, ResumableLoader]:
    data = TensorDataset(torch.arange(num_samples))
    loader = ResumableLoader(DataLoader(data, batch_size=batch_size), name="train_input", seed=0, repeat=True)
    return TrainingFeed(loader, per_call, lambda batch: batch, (notes or []).append), loader


def test_calls_hold_batches_in_the_loaders_order() -> None:
    feed, _ = make_feed(12, 2, 3)
    calls = [feed.next_call() for _ in range(3)]
    assert [call.tensors[0].tolist() for call in calls] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [0, 1, 2, 3, 4, 5],
    ]
    assert [call.num_samples for call in calls] == [6, 6, 6]


def test_a_short_batch_is_left_out_and_told_once() -> None:
    notes: list[str] = []
    feed, loader = make_feed(10, 4, 1, notes)
    feed._note = notes.append
    drawn = [feed.next_call().tensors[0].tolist() for _ in range(5)]
    assert drawn == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert len(notes) == 1
    assert "2 samples instead of 4" in notes[0]
    assert feed.full_batches == 2
    assert loader.position()["epoch"] == 2


def test_data_of_less_than_a_batch_are_refused_instead_of_waited_for() -> None:
    feed, _ = make_feed(3, 4, 1)
    with pytest.raises(UserError, match="3 samples where 4"):
        feed.next_call()


def test_resume_at_a_short_batch() -> None:
    feed, loader = make_feed(10, 4, 1)
    loader.seek({"epoch": 0, "batch": 2, "samples": 8, "batch_size": 4})
    feed.restart()
    assert feed.next_call().tensors[0].tolist() == [0, 1, 2, 3]


def test_another_shape_is_refused_by_name() -> None:
    batches = [{"x": torch.zeros(2, 5)}, {"x": torch.zeros(2, 6)}]
    loader = ResumableLoader(batches, name="train_input", seed=0, repeat=True)
    feed = TrainingFeed(loader, 1, lambda batch: batch, print)
    feed.next_call()
    with pytest.raises(UserError, match=r"batch\['x'\] was float32\[2, 5\].*float32\[2, 6\]"):
        feed.next_call()


def test_scalars_get_an_axis_to_be_joined_along() -> None:
    joined = join([{"x": torch.ones(2), "s": torch.tensor(float(i))} for i in range(3)])
    assert [list(t.shape) for t in joined] == [[6], [3]]
    assert joined[1].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("first", "other", "agree"),
    [
        ((torch.ones(1), "a"), (torch.zeros(1), "a"), True),
        ((torch.ones(1), "a"), (torch.zeros(1), "b"), False),
        ({"n": 1, "x": torch.ones(1)}, {"n": 2, "x": torch.ones(1)}, False),
        ([None, torch.ones(1)], [None, torch.ones(1)], True),
        ((torch.ones(1), float("nan")), (torch.ones(1), float("nan")), True),
        ((torch.ones(1), np.arange(3)), (torch.ones(1), np.arange(3)), True),
        ((torch.ones(1), np.arange(3)), (torch.ones(1), np.arange(4)), False),
        ((torch.ones(1), [np.arange(3)]), (torch.ones(1), [np.arange(4)]), False),
        ((torch.nn.Parameter(torch.ones(1)), "a"), (torch.ones(1), "a"), True),
        ((torch.ones(1), "a"), [torch.ones(1), "a"], False),
        ({"x": torch.ones(1)}, {"x": torch.ones(1), "y": "a"}, False),
        ({"x": torch.ones(1), "y": None}, {"x": torch.ones(1), "y": torch.ones(1)}, False),
    ],
)
def test_what_is_no_tensor_must_stay(first: Any, other: Any, agree: bool) -> None:
    if agree:
        check_constants("train_input", first, other, "a program")
    else:
        with pytest.raises(UserError, match=r"(no tensor,|keys of batch|kind of batch\S*) changes from"):
            check_constants("train_input", first, other, "a program")


def test_what_changes_is_named_and_shortened() -> None:
    def batch(word: str) -> Any:
        return {"x": torch.ones(2, 1000), "about": {"x": torch.ones(1), "names": [word * 200] * 50}}

    with pytest.raises(UserError) as caught:
        check_constants("train_input", batch("a"), batch("b"), "a program of an IPU")
    said = str(caught.value)
    assert said.startswith("train_input: batch['about']['names'], which is no tensor, changes from ['aaa")
    assert said.endswith("Leave it out of the batch, or make it a tensor, in data.py.")
    assert len(said) < 450
    assert "\n" not in said


def test_signature_names_each_tensor() -> None:
    assert signature_of(({"a": torch.ones(2, 3, dtype=torch.int32)},)) == (
        ("batch[0]['a']", torch.int32, (2, 3)),
    )
