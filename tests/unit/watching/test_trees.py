"""Batches as trees of tensors: whatever `plan` takes, a run takes too, by one mechanism."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch

from portwright.graph.inputs import map_tensors as map_named
from portwright.watching.trees import make_mover, map_tensors, walk_tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    images: Any
    note: str = "kept"
    made: Any = field(default=None, init=False)


@dataclass
class Checked:
    images: Any

    def __post_init__(self) -> None:
        assert self.images.dtype is torch.float32


class Own(dict[str, Any]):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def filled(kind: Any) -> Any:
    kind["x"] = torch.ones(1)
    return kind


@pytest.mark.parametrize(
    ("batch", "path", "name"),
    [
        (torch.ones(1), "batch", ""),
        ({"x": torch.ones(1), "n": 3}, "batch['x']", "x"),
        ([3, (torch.ones(1), "text")], "batch[1][0]", "1.0"),
        (Pair(torch.ones(1), None), "batch.left", "left"),
        (filled(defaultdict(list)), "batch['x']", "x"),
        (filled(OrderedDict()), "batch['x']", "x"),
        (filled(UserDict()), "batch['x']", "x"),
        (filled(Own(7)), "batch['x']", "x"),
        (Frozen(torch.ones(1)), "batch.images", "images"),
        (Checked(torch.ones(1)), "batch.images", "images"),
        ([Frozen({"a": torch.ones(1)})], "batch[0].images['a']", "0.images.a"),
    ],
)
def test_every_tensor_is_found_and_moved_and_the_rest_kept(batch: Any, path: str, name: str) -> None:
    assert [found for found, _ in walk_tensors(batch)] == [path]
    move = make_mover(torch.device("cpu"), torch.float64)
    assert move is not None
    moved = move(batch)
    assert type(moved) is type(batch)
    assert [tensor.dtype for _, tensor in walk_tensors(moved)] == [torch.float64]
    assert [tensor.dtype for _, tensor in walk_tensors(batch)] == [torch.float32]  # the original stays
    named: list[str] = []
    planned = map_named(batch, lambda tensor, name: (named.append(name), tensor)[1])
    assert named == [name]
    assert type(planned) is type(batch)


def test_what_a_container_knows_beside_its_parts_stays() -> None:
    assert map_tensors(filled(defaultdict(list)), torch.neg)["new"] == []
    assert map_tensors(filled(Own(7)), torch.neg).size == 7
    assert map_tensors(Frozen(torch.ones(1), "own"), torch.neg).note == "own"


def test_a_mapping_that_cannot_be_made_becomes_a_dict() -> None:
    class View(UserDict[str, Any]):
        def __init__(self, a: Any, b: Any) -> None:
            super().__init__(x=a)

    assert type(map_tensors(View(torch.ones(1), 2), torch.neg)) is dict
    assert type(map_tensors(MappingProxyType({"x": torch.ones(1)}), torch.neg)) is MappingProxyType
