from __future__ import annotations

import threading

import pytest
import streaming_nets as nets
import torch
from torch import nn

from portwright.runtime.streaming.layers import find_layers
from portwright.runtime.streaming.unit import ALIGN_BYTES, Unit, dense_stride, make_units, slot_dtype

CPU = torch.device("cpu")


def units_of(net: nn.Module, half: torch.dtype | None = None, layers: list[str] | None = None) -> list[Unit]:
    return make_units(find_layers(net, layers), net, CPU, half, threading.Condition())


def test_weights_lie_aligned_one_after_the_other() -> None:
    (unit, *_) = units_of(nets.Stack(2))
    starts = [entry.start for entry in unit.entries]
    assert starts == sorted(starts)
    assert all(start % ALIGN_BYTES == 0 for start in starts)
    flat = torch.zeros(unit.num_bytes, dtype=torch.uint8)
    for number, entry in enumerate(unit.entries):
        entry.view(flat).fill_(number + 1)
    for number, entry in enumerate(unit.entries):
        assert entry.view(flat).shape == entry.master.shape
        assert bool((entry.view(flat) == number + 1).all()), "another weight was written over it"


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_weight_keeps_its_order_of_dimensions(order: torch.memory_format) -> None:
    conv = nn.Conv2d(3, 5, 2).to(memory_format=order)
    (unit,) = units_of(nn.Sequential(conv), torch.bfloat16)
    view = unit.entries[0].view(torch.zeros(unit.num_bytes, dtype=torch.uint8))
    assert view.is_contiguous(memory_format=order)


def test_gaps_are_closed() -> None:
    weight = torch.empty(8, 6)[::2, ::3]
    assert dense_stride(weight) == (2, 1)
    assert dense_stride(torch.empty(3, 4).t()) == (1, 4)


@pytest.mark.parametrize(
    ("owner", "shape", "dtype", "expected"),
    [
        (nn.Linear(2, 2), (2, 2), torch.float32, torch.bfloat16),
        (nn.Linear(2, 2), (2,), torch.float32, torch.float32),
        (nn.Conv1d(2, 2, 1), (2, 2, 1), torch.float32, torch.bfloat16),
        (nn.Linear(2, 2), (2, 2), torch.float64, torch.float64),
        (nn.Embedding(2, 2), (2, 2), torch.float32, torch.float32),  # autocast leaves it alone
        (nn.LayerNorm((2, 2)), (2, 2), torch.float32, torch.float32),
        (nets.QueryLayer(), (1, 8), torch.float32, torch.float32),  # who knows what for
    ],
)
def test_the_device_has_what_autocast_would_make(
    owner: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, expected: torch.dtype
) -> None:
    assert slot_dtype(owner, torch.empty(shape, dtype=dtype), torch.bfloat16) == expected
    assert slot_dtype(owner, torch.empty(shape, dtype=dtype), None) == dtype


def test_shared_and_empty_weights_are_left_to_the_rest() -> None:
    net = nets.Stack(3)
    net.blocks[0].norm.weight = net.blocks[1].norm.weight  # two layers'
    net.head.weight = net.blocks[2].net[2].bias  # a layer's and the rest's
    net.blocks[1].extra = nn.Parameter(torch.empty(0, 3))
    names = [entry.name for unit in units_of(net) for entry in unit.entries]
    assert "blocks.2.net.2.weight" in names
    assert not {"blocks.0.norm.weight", "blocks.1.norm.weight", "blocks.2.net.2.bias", "head.weight"} & set(
        names
    )
    assert not any("extra" in name for name in names)
    assert len(names) == len(set(names))


def test_a_weight_under_two_names_in_one_layer_is_one() -> None:
    net = nets.Stack(1)
    net.blocks[0].tied = net.blocks[0].net[0].weight
    (unit,) = units_of(net, layers=["blocks.*"])
    (entry,) = [entry for entry in unit.entries if len(entry.owners) == 2]
    with unit.lent():
        stand_in = unit.stand_ins[unit.entries.index(entry)]
        assert net.blocks[0].tied is net.blocks[0].net[0].weight is stand_in
    assert net.blocks[0].tied is net.blocks[0].net[0].weight is entry.master


def test_a_layer_all_of_whose_weights_are_shared_is_none() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    net[0].weight = net[1].weight
    assert [unit.name for unit in units_of(net)] == ["2"]
    assert units_of(nn.Sequential(net[0], net[1])) == []


def test_masters_are_back_after_an_error() -> None:
    net = nets.Stack(1)
    (unit,) = units_of(net, layers=["blocks.*"])
    masters = dict(net.named_parameters())
    with pytest.raises(ValueError, match=r"my own"), unit.lent():
        raise ValueError(
            "my own" if set(net.parameters()).isdisjoint(unit.stand_ins) is False else "not lent"
        )
    assert all(parameter is masters[name] for name, parameter in net.named_parameters())


def test_frozen_weights_have_stand_ins_without_gradients() -> None:
    net = nets.Frozen()
    for unit in units_of(net):
        for entry, stand_in in zip(unit.entries, unit.stand_ins, strict=True):
            assert stand_in.requires_grad == entry.master.requires_grad
        assert unit.trained == [i for i, e in enumerate(unit.entries) if e.master.requires_grad]


def test_who_waits_for_an_update_gets_its_failure() -> None:
    (unit,) = units_of(nets.Stack(1), layers=["blocks.*"])
    unit.wanted_version = 2
    waited: list[object] = []

    def wait() -> None:
        try:
            unit.wait_updated()
            waited.append("updated")
        except ValueError as error:
            waited.append(str(error))

    for settle, expected in (
        (lambda: unit.updated(2), "updated"),
        (lambda: unit.fail(ValueError("gone")), "gone"),
    ):
        unit._version = 0
        thread = threading.Thread(target=wait)
        thread.start()
        unit.updated(1)
        assert not waited
        settle()
        thread.join(10)
        assert waited.pop() == expected


def test_the_shadow_has_the_masters_values_in_the_devices_types() -> None:
    (unit,) = units_of(nets.Stack(1), torch.bfloat16, ["blocks.*"])
    assert unit.has_own_shadow
    unit.shadow = torch.zeros(unit.num_bytes, dtype=torch.uint8)
    unit.write_shadow([0])
    assert not unit.entries[2].view(unit.shadow).any()
    unit.write_shadow()
    for entry in unit.entries:
        assert entry.view(unit.shadow).equal(entry.master.to(entry.dtype))


def test_parts_of_a_normalised_weight_keep_their_precision() -> None:
    conv = nn.Conv1d(2, 3, 2)
    assert slot_dtype(conv, conv.weight, torch.bfloat16, "weight_v") == torch.float32
    assert slot_dtype(conv, conv.weight, torch.bfloat16) == torch.bfloat16
