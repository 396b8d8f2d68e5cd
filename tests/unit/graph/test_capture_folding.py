"""A layer that is copied gives the graph that it would have given when run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from portwright.graph.capturing import folding
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph
from portwright.graph.inputs import TensorSpec
from portwright.graph.plans.flops import flops_of_node
from portwright.layers import TransformerDecoder, TransformerDecoderLayer

WIDTH = 8


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the modules that were copied."""
    paths: list[str] = []
    original = folding.Copy

    def note(template: Any, tape: Any, path: str, given: Any) -> Any:
        paths.append(path)
        return original(template, tape, path, given)

    monkeypatch.setattr(folding, "Copy", note)
    return paths


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        return x + self.drop(self.out(mixed[:, 0])) * scale


class Residual(nn.Module):
    """Without batch norm, which counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, WIDTH), nn.GroupNorm(2, WIDTH)
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + x)


class Recomputed(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return checkpoint(super().forward, x, scale, use_reentrant=False)


class Stack(nn.Module):
    def __init__(self, make: Callable[[], nn.Module], depth: int = 6) -> None:
        super().__init__()
        self.first, self.blocks = nn.LayerNorm(WIDTH), nn.ModuleList(make() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.pow(2).mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.Sequential(*(Attention() for _ in range(5)))
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.embed(ids))).flatten(0, 1), ids.flatten())


class Shared(nn.Module):
    """One layer that is called again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Attention()])

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.ones(WIDTH, device=x.device).requires_grad_()
        for _ in range(5):
            x = self.blocks[0](x)
        return x.sum()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, WIDTH, 3), nn.ModuleList(Residual() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3)).logsumexp(1).mean()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True, add_cross_attention=False),
            num_layers=5,
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -1e9, device=x.device).triu(1)
        return self.decoder(self.norm(x), tgt_mask=mask).mean()


def encoder() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 5, enable_nested_tensor=False
    )


TOKENS = TensorSpec((2, 4, WIDTH))
CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "attention": (lambda: Stack(Attention), TOKENS),
    "checkpoint": (lambda: Stack(Recomputed), TOKENS),
    "tied": (Tied, TensorSpec((2, 4), "int64")),
    "shared": (Shared, TOKENS),
    "images": (Images, TensorSpec((2, 3, 8, 8))),
    "decoder": (Decoder, TOKENS),
    "encoder": (encoder, TOKENS),
}


def contents(graph: Graph) -> Counter[Any]:
    def spec(value: int) -> Any:
        v = graph.values[value]
        return v.shape, v.dtype, v.kind, v.name, v.requires_grad, v.base == v.index

    return Counter(
        (n.op, n.phase, n.module, n.place, n.call, tuple(map(spec, n.inputs)), tuple(map(spec, n.outputs)),
         graph.nodes[n.forward].op if n.forward >= 0 else "")
        for n in graph.nodes
    )  # fmt: skip


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_folded_graph_is_the_graph(name: str, trains: bool, copies: list[str]) -> None:
    make, batch = CASES[name]
    plain = capture(make, batch, folds=False, trains=trains)
    assert not copies
    folded = capture(make, batch, trains=trains)
    assert len(copies) >= 2
    assert folded.stops == plain.stops == ()
    assert contents(folded) == contents(plain)
    assert folded.modules == plain.modules
    assert folded.num_parameters == plain.num_parameters
    assert len(folded.values) == len(plain.values)
    assert [n.op for n in folded.of_phase("forward")] == [n.op for n in plain.of_phase("forward")]
    assert _is_well_formed(folded)
    assert _flops(folded) == _flops(plain) > 0


def _flops(graph: Graph) -> int:
    return sum(sum(flops_of_node(graph, node)) for node in graph.nodes)


def _is_well_formed(graph: Graph) -> bool:
    made = {v.index for v in graph.values if v.kind != "activation"}
    for number, node in enumerate(graph.nodes):
        assert node.index == number
        assert node.forward < number
        assert set(node.inputs) <= made, node
        made |= set(node.outputs)
    return graph.loss in made or not graph.trains


def test_nothing_is_copied_under_autocast(copies: list[str]) -> None:
    graphs = [
        capture(lambda: Stack(Attention), TOKENS, folds=folds, casts=torch.autocast("cpu", torch.bfloat16))
        for folds in (False, True)
    ]
    assert copies == []  # autocast keeps what it has cast
    assert contents(graphs[0]) == contents(graphs[1])


KEPT: list[Tensor] = []


class Keeps(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = super().forward(x, scale)
        KEPT.append(x.mean())
        return x


class Counts(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return super().forward(x, scale)


class Mutates(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        super().forward(x, scale)
        return x.add_(1)


class Views(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        super().forward(x, scale)
        return x.view_as(x)


OUTSIDE = torch.ones(WIDTH)


class ReadsOutside(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x, scale) + OUTSIDE.to(x.device)


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(self.count(x), scale)


class Two(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return super().forward(x, scale), x.mean()


class Reads(Attention):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x, x.mean().item())


class Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        result = self.inner(x)
        return result[0] if isinstance(result, tuple) else result


def hooked() -> nn.Module:
    block = Attention()
    block.out.register_forward_hook(lambda module, args, result: result * 2)
    return block


@pytest.mark.parametrize(
    "make",
    [Keeps, Counts, Mutates, Views, ReadsOutside, Normed, Reads, hooked],
    ids=lambda make: make.__name__,
)
def test_what_may_not_be_copied_is_run(make: Callable[[], nn.Module], copies: list[str]) -> None:
    KEPT.clear()
    folded = capture(lambda: Stack(make), TOKENS)
    assert copies == []
    assert contents(folded) == contents(capture(lambda: Stack(make), TOKENS, folds=False))
    assert not any(stop.kind == "failure" for stop in folded.stops)


class Alternating(nn.Module):
    """Layers whose settings differ, and that get other arguments, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Attention() for _ in range(8))
        for number, block in enumerate(self.blocks):
            block.drop.p = 0.1 * (number % 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            x = block(x, scale=float(number < 4))
        return x.sum()


def test_only_equal_layers_are_copied(copies: list[str]) -> None:
    folded = capture(Alternating, TOKENS)
    assert copies == []  # two of each kind, and both are run
    assert contents(folded) == contents(capture(Alternating, TOKENS, folds=False))


def test_an_error_in_a_later_layer_is_still_found(copies: list[str]) -> None:
    class Shrinking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([*(Attention() for _ in range(4)), nn.Linear(3, 3)])

        def forward(self, x: Tensor) -> Tensor:
            x = x * nn.functional.softplus(self.blocks[0].out.bias)
            for block in self.blocks:
                x = block(x)
            return x.sum()

    graph = capture(Shrinking, TOKENS)
    assert copies == ["blocks.2", "blocks.3"]
    assert [(stop.kind, stop.module) for stop in graph.stops] == [("failure", "blocks.4")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_run_as_they_are(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(6)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x.square().mean()

    graph = capture(Net, TensorSpec((4, 8), "float32"))
    assert not graph.stops
    # Twelve products, two gradients each, and a second forward, which the newer kind ends where nothing more is needed.
    num_products = sum(node.op.startswith(("aten.addmm", "aten.mm")) for node in graph.nodes)
    assert num_products == 12 + 24 + (12 if reentrant else 6)
