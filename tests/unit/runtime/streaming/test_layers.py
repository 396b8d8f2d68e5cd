from __future__ import annotations

import contextlib

import pytest
import streaming_nets as nets
import torch
from torch import nn

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.layers import find_layers


def paths(net: nn.Module, patterns: list[str] | None = None) -> list[str]:
    return [path for path, _ in find_layers(net, patterns)]


class Encoder(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nets.blocks(count)


class Model(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            self.add_module(f"p{index}", part)


class Alias(nn.Module):
    """The same layers in three lists, one of which holds a stage of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nets.Block(), nets.Block(), nets.Block(), nets.Block(), nets.Block()])
        self.inner = nn.ModuleList([self.stages[0].net, self.stages[1]])
        self.again = nn.ModuleList(reversed(list(self.stages)))


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (nets.Stack(4), ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ["0", "2"]),
        (Model(Encoder(3), Encoder(1)), ["p0.layers.0", "p0.layers.1", "p0.layers.2", "p1.layers.0"]),
        (nets.NoLists(), ["first", "second", "third"]),
        (Model(Model(nn.Linear(2, 9), nn.Linear(9, 2)), nn.Linear(2, 1)), ["p0.p0", "p0.p1", "p1"]),
        (nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Identity()]), nn.Linear(2, 2)]), ["0.0", "1"]),
        (nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Linear(2, 2)}), ["a.0"]),
        # Where a layer is most of the model, its own parts are streamed.
        (nets.Stack(1), ["blocks.0.net.0", "blocks.0.net.2"]),
        # One large stage is looked into, small ones are taken whole.
        (nn.Sequential(nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)), nn.Linear(9, 1)), ["0.0", "0.1", "1"]),
        (nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(5))), ["0", "1", "2", "3", "4"]),
        (Alias(), ["stages.0", "stages.1", "stages.2", "stages.3", "stages.4"]),
        (nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2)))), ["0"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
def test_layers_are_found_in_lists(net: nn.Module, expected: list[str]) -> None:
    assert paths(net) == expected


def test_none_is_inside_another() -> None:
    layers = [module for _, module in find_layers(Alias())]
    inside = {part for layer in layers for part in layer.modules() if part is not layer}
    assert len(set(layers)) == len(layers)
    assert not inside & set(layers)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["blocks.*"], ["blocks.0", "blocks.1", "blocks.2"]),
        (["blocks.[02]", "head"], ["blocks.0", "blocks.2", "head"]),
        (["blocks.?.net.2"], ["blocks.0.net.2", "blocks.1.net.2", "blocks.2.net.2"]),
        (["*.net", "blocks.1"], ["blocks.0.net", "blocks.1", "blocks.2.net"]),
    ],
)
def test_layers_are_named_by_patterns(patterns: list[str], expected: list[str]) -> None:
    assert paths(nets.Stack(3), patterns) == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["blocks.*", "layer.*"], r"'layer.\*' names no module with weights"),
        (["blocks.0.drop"], r"'blocks.0.drop' names no module with weights"),
        (["blocks"], r"'blocks' names a list, which is never called itself. .*'blocks\.\*'"),
        (["blocks", "head"], r"'blocks' names a list"),  # not passed over beside one that can be streamed
        ([""], r"'' names no module"),
    ],
)
def test_patterns_that_name_nothing_are_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_layers(nets.Stack(3), patterns)


def test_a_net_without_weights_is_refused() -> None:
    with pytest.raises(UserError, match=r"Sequential has no layers that could be streamed"):
        find_layers(nn.Sequential(nn.ReLU(), nn.Identity()))


def test_a_compiled_part_is_refused() -> None:
    net = nets.Stack(2)
    net.head._compiled_call_impl = net.head.forward  # what compile() leaves
    with pytest.raises(UserError, match=r"'head' is compiled"):
        find_layers(net)


def test_a_named_layer_that_cannot_be_streamed_is_told() -> None:
    notes: list[str] = []
    section = StreamingSection(layers=["blocks.*", "head"])
    with contextlib.closing(Streaming(nets.Gpt(tied=True), torch.device("cpu"), section, notes.append)):
        assert [note for note in notes if "head stays on the device" in note]
    notes.clear()
    with contextlib.closing(Streaming(nets.Gpt(tied=False), torch.device("cpu"), section, notes.append)):
        assert notes == []
