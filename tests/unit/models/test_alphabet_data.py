"""The alphabet's data: each sample follows from the seed and its index."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from portwright.errors import UserError
from portwright.models.alphabet.data import AlphabetDataset, get_eval_dataloader, get_train_dataloader
from portwright.models.alphabet.utils import set_defaults

STARTS_OF_SEED_1 = [9, 11, 13, 10, 6, 0, 12, 6]


def starts(dataset: AlphabetDataset) -> list[int]:
    return [int(sample["input_ids"][0]) for sample in dataset]  # type: ignore[attr-defined]


def make(
    num_samples: int = 200, seq_length: int = 10, seed: int = 1, name: str = "train_input"
) -> AlphabetDataset:
    return AlphabetDataset(num_samples, seq_length, 26, seed, name)


def test_a_sample_and_its_target() -> None:
    sample = make()[17]
    first = int(sample["input_ids"][0])
    assert sample["input_ids"].tolist() == list(range(first, first + 10))
    assert sample["target_ids"].tolist() == list(range(first + 1, first + 11))
    assert sample["attention_mask"].tolist() == [1] * 10
    assert {tensor.dtype for tensor in sample.values()} == {torch.int32}


def test_samples_are_a_function_of_seed_and_index() -> None:
    expected = starts(make())
    torch.manual_seed(99)
    assert [int(make()[index]["input_ids"][0]) for index in reversed(range(200))] == expected[::-1]
    assert starts(make(num_samples=50)) == expected[:50]
    assert starts(make(seed=2)) != expected
    assert starts(make(name="eval_input")) != expected


def test_the_same_samples_everywhere() -> None:
    """Python promises that text seeds its generator alike in every release; a change would move every result."""
    assert starts(make(num_samples=8)) == STARTS_OF_SEED_1


def test_every_start_occurs() -> None:
    assert set(starts(make(num_samples=1000))) == set(range(16))
    assert set(starts(make(seq_length=25))) == {0}


@pytest.mark.parametrize("seq_length", [0, 26, 100])
def test_a_slice_must_leave_a_letter_to_predict(seq_length: int) -> None:
    with pytest.raises(UserError, match=f"seq_length is {seq_length} in an alphabet of 26"):
        make(seq_length=seq_length)


def test_indices_end() -> None:
    assert len(make(num_samples=3)) == 3
    for index in (3, -1):
        with pytest.raises(IndexError):
            make(num_samples=3)[index]


def params(**train_input: Any) -> dict[str, Any]:
    return set_defaults({"train_input": {"num_samples": 40, "batch_size": 8, **train_input}})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches(num_workers: int) -> None:
    batches = list(get_train_dataloader(params(num_workers=num_workers)))
    assert len(batches) == 5
    assert all(batch["input_ids"].shape == (8, 10) for batch in batches)
    assert torch.cat([batch["input_ids"] for batch in batches])[:, 0].tolist() == starts(make(num_samples=40))
    assert len(get_eval_dataloader(params())) == 63


def test_a_sample_longer_than_the_model() -> None:
    with pytest.raises(UserError, match=r"train_input\.seq_length is 12 and model\.seq_len 10"):
        get_train_dataloader(params(seq_length=12))
