"""How layers are split: every element belongs to one process, and nobody has more than the others."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from portwright.runtime.streaming.sharded_engine import ShardedLayout, host_bytes
from portwright.runtime.streaming.sharded_unit import Part, ShardedUnit, shard_units
from portwright.runtime.streaming.unit import ALIGN_BYTES, Unit, make_units

CPU = torch.device("cpu")
BF16 = torch.bfloat16


class Layer(nn.Module):
    def __init__(self, sizes: list[int], turned: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])
        self.frozen = nn.Linear(sizes[0], 3).requires_grad_(False)
        self.number = nn.Parameter(torch.tensor(2.0))
        conv = nn.Conv2d(3, 4, 2)
        self.conv = conv.to(memory_format=torch.channels_last) if turned else conv


def units_of(sizes: list[int], half: torch.dtype | None, turned: bool = False) -> list[Unit]:
    torch.manual_seed(0)
    net = nn.Sequential(Layer(sizes, turned), Layer(sizes[::-1], turned))
    layers = list(net.named_children())
    return make_units(layers, net, CPU, half, threading.Condition())


def sharded(
    sizes: list[int], half: torch.dtype | None, num_ranks: int, turned: bool = False
) -> list[list[Unit]]:
    """The same layers as each process has them."""
    changed = threading.Condition()
    return [
        shard_units(units_of(sizes, half, turned), rank, num_ranks, CPU, changed) for rank in range(num_ranks)
    ]


def as_sharded(unit: Unit) -> ShardedUnit:
    assert isinstance(unit, ShardedUnit)
    return unit


@given(
    first=st.integers(0, 300),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    chunk=st.integers(1, 200),
)
def test_every_element_belongs_to_one_process(first: int, shape: list[int], chunk: int) -> None:
    size = torch.Size(shape)
    num_ranks = -(-(first + size.numel()) // chunk)
    part = Part(size, torch.empty(shape).stride(), first, chunk)
    bounds = [part.bounds(rank) for rank in range(num_ranks)]
    owned = [element for begin, end in bounds for element in range(begin, end)]
    assert owned == list(range(size.numel()))
    for rank, (begin, end) in enumerate(bounds):
        assert 0 <= part.offset(rank) <= chunk - (end - begin)
    whole = torch.arange(size.numel()).view(size)
    assert torch.equal(torch.cat([part.cut(whole, rank) for rank in range(num_ranks)]), whole.reshape(-1))


@pytest.mark.parametrize("num_ranks", [2, 3, 7])
@pytest.mark.parametrize("half", [None, BF16])
@pytest.mark.parametrize("turned", [False, True])
def test_shadows_side_by_side_are_the_slot(num_ranks: int, half: torch.dtype | None, turned: bool) -> None:
    """What is gathered from the processes' shadows gives the weights, in the types and the memory order of the device."""
    sizes = [5, 64, 17, 1]
    of_rank = sharded(sizes, half, num_ranks, turned)
    for index, whole in enumerate(units_of(sizes, half, turned)):
        wanted = {entry.name: entry.master.detach() for entry in whole.entries if entry.master.ndim}
        units = [as_sharded(units[index]) for units in of_rank]
        slot = torch.zeros(units[0].num_bytes, dtype=torch.uint8)
        for rank, unit in enumerate(units):
            host = unit.host
            host.shadow = torch.zeros(host.num_bytes, dtype=torch.uint8)
            for entry in host.entries:
                entry.view(host.shadow).copy_(entry.master)
            for region in unit.regions:
                region.own(slot, rank).copy_(region.on_host(host.shadow))
        assert {entry.name for entry in units[0].entries} == wanted.keys(), (
            "single numbers are left to the rest"
        )
        for entry in units[0].entries:
            assert entry.start % ALIGN_BYTES == 0
            view = entry.view(slot)
            assert torch.equal(view, wanted[entry.name].to(entry.dtype)), entry.name
            assert view.stride() == wanted[entry.name].stride()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_parts_are_equal_within_padding(num_ranks: int) -> None:
    for unit in sharded([64, 256, 64], BF16, num_ranks)[0]:
        padding = len(as_sharded(unit).regions) * ALIGN_BYTES + len(unit.entries) * ALIGN_BYTES
        whole = sum(entry.num_bytes for entry in unit.entries)
        assert abs(unit.host.num_bytes - whole / num_ranks) <= padding
        assert unit.num_bytes == num_ranks * unit.host.num_bytes


def test_the_model_keeps_shapes_and_nobody_computes_with_them_unseen() -> None:
    unit = as_sharded(sharded([4, 6], None, 2)[0][0])
    for entry, own in zip(unit.entries, unit.host.entries, strict=True):
        assert entry.master.isnan().all()
        assert entry.master.untyped_storage().nbytes() <= 8, "a whole weight is left in memory"
        assert own.master.requires_grad == entry.master.requires_grad
        assert own.master.ndim == 1
        assert not own.master.isnan().any()


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("turned", [False, True])
def test_own_parts_of_gradients_fit_own_parts_of_weights(num_ranks: int, turned: bool) -> None:
    of_rank = sharded([7, 33, 5], BF16, num_ranks, turned)
    for index in range(len(of_rank[0])):
        found: dict[int, list[torch.Tensor]] = {}
        for rank in range(num_ranks):
            unit = as_sharded(of_rank[rank][index])
            layout = ShardedLayout(unit)
            flat = torch.full((layout.num_bytes,), 255, dtype=torch.uint8)
            views = layout.views(flat)
            assert [view.shape for view in views] == [unit.entries[i].master.shape for i in unit.trained]
            assert all(view.dtype is torch.float32 for view in views), "bf16 gradients are added up in fp32"
            for position, view in enumerate(views):
                view.copy_(torch.arange(view.numel()).view(view.shape) + 1000 * position)
            place = torch.zeros(host_bytes([unit]), dtype=torch.uint8)
            for whole, on_host in layout.chunks(list(range(len(views))), flat, place):
                own = whole.chunk(num_ranks)[rank]
                on_host.copy_(own.view(torch.uint8))
            for position, own in enumerate(layout.host_views(place)):
                entry = unit.host.entries[unit.trained[position]]
                assert own.shape == entry.master.shape
                assert torch.equal(own, layout.own_views(flat)[position])
                found.setdefault(position, []).append(own)
        for position, parts in found.items():
            part = unit.parts[unit.trained[position]]
            whole = part.shaped(torch.cat(parts))
            wanted = torch.arange(whole.numel()).view(whole.shape) + 1000 * position
            assert torch.equal(whole, wanted.float()), position
