"""Models to plan, and a way to plan them without a kernel table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph
from portwright.graph.kernels import Verdict
from portwright.graph.match import MatchReport


class Images(nn.Module):
    """Convolutions of every kind, in-place and shared storage."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.ReLU(inplace=True),
        )
        self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4 * 14 * 14, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.up(self.features(images)).flatten(1)), labels)


class Block(nn.Module):
    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, size))
        return x + self.mlp(x)


class Text(nn.Module):
    """A small GPT whose head shares the embedding's weight."""

    def __init__(self, num_layers: int = 3, size: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, size)
        self.blocks = nn.ModuleList(Block(size, 4) for _ in range(num_layers))
        self.head = nn.Linear(size, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Dense(nn.Module):
    """fc_mnist of model zoo 1.6."""

    def __init__(self, sizes: tuple[int, ...] = (784, *[50] * 10, 10)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return F.nll_loss(self.layers[-1](x).log_softmax(1), labels)


def image_batch(size: int = 4) -> tuple[torch.Tensor, ...]:
    return torch.randn(size, 3, 32, 32), torch.zeros(size, dtype=torch.long)


def text_batch(size: int = 4) -> tuple[torch.Tensor, ...]:
    return torch.zeros(size, 12, dtype=torch.long), torch.zeros(size, 12, dtype=torch.long)


def dense_batch(size: int = 128, inputs: int = 784) -> tuple[torch.Tensor, ...]:
    return torch.randn(size, inputs), torch.zeros(size, dtype=torch.long)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "images": (Images, image_batch),
    "text": (Text, text_batch),
    "dense": (Dense, dense_batch),
}


def graph_of(name: str, size: int = 4, **options: Any) -> Graph:
    make, batch = CASES[name]
    return capture(make, batch(size), **options) if options else _plain_graph(name, size)


@functools.cache
def _plain_graph(name: str, size: int) -> Graph:
    make, batch = CASES[name]
    return capture(make, batch(size))


def trusted(graph: Graph, target: str = "ANY") -> MatchReport:
    return MatchReport(target, "all", graph, tuple(Verdict("native") for _ in graph.nodes), ())
