"""Taking over a part of a pretrained checkpoint."""

from __future__ import annotations

import pytest
import torch

from portwright.errors import UserError
from portwright.runtime.pretrained import take_over
from portwright.target import Shard


def shards(**tensors: torch.Tensor) -> list[Shard]:
    return [Shard(f"model/{name}", tensor) for name, tensor in tensors.items()]


def test_what_fits_is_taken_and_the_rest_told() -> None:
    notes: list[str] = []
    given = [
        *shards(body=torch.ones(2), head=torch.ones(5), old=torch.ones(1)),
        Shard("optimizer/body/step", torch.ones(1)),
    ]
    own = [*shards(body=torch.zeros(2), head=torch.zeros(3)), Shard("rng/0/torch", torch.zeros(1))]
    made = {shard.name: shard.tensor.tolist() for shard in take_over(given, own, notes.append)}
    assert made == {"model/body": [1, 1], "model/head": [0, 0, 0]}
    assert notes == [
        "of another shape in the checkpoint, and left as initialised: head (5 there, 3 here)",
        "in the checkpoint, and not in the model: old",
    ]


def test_what_is_missing_is_told_apart_from_what_has_another_shape() -> None:
    notes: list[str] = []
    own = shards(a=torch.zeros(1), new=torch.zeros(2), table=torch.zeros(3, 2))
    list(take_over(shards(a=torch.ones(1), table=torch.ones(4, 2)), own, notes.append))
    assert notes == [
        "not in the checkpoint, and left as initialised: new",
        "of another shape in the checkpoint, and left as initialised: table (4x2 there, 3x2 here)",
    ]


def test_all_of_it_is_not_worth_a_word() -> None:
    notes: list[str] = []
    list(take_over(shards(a=torch.ones(1)), shards(a=torch.zeros(1)), notes.append))
    assert notes == []


def test_long_lists_are_cut() -> None:
    notes: list[str] = []
    many = {f"w{index}": torch.ones(1) for index in range(8)}
    list(take_over(shards(a=torch.ones(1), **many), shards(a=torch.zeros(1)), notes.append))
    assert notes == ["in the checkpoint, and not in the model: w0, w1, w2, w3, w4, and 3 more"]


def test_nothing_in_common() -> None:
    with pytest.raises(UserError, match="no weight of this model"):
        list(take_over(shards(a=torch.ones(1)), shards(b=torch.ones(1)), lambda line: None))


@pytest.mark.parametrize("prefix", ["module.", "model."])
def test_a_wrappers_prefix_is_taken_off(prefix: str) -> None:
    given = [Shard(f"model/{prefix}a", torch.ones(1))]
    (shard,) = take_over(given, shards(a=torch.zeros(1)), lambda line: None)
    assert shard.name == "model/a"
    assert shard.tensor == 1
