"""One question to a front end, as a model and a batch.

A gradient flows into every floating-point input of an op, and every output reaches the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

B = 4  # samples in a batch: the SDK wants the same first dimension of every tensor


@dataclass(frozen=True)
class Case:
    """One question: does the front end take a step (or a forward pass) of this model on this batch?"""

    name: str
    make_model: Callable[[], nn.Module]
    batch: tuple[Tensor, ...]
    train: bool = True


def loss_of(output: Any) -> Tensor:
    """A number that every output has a part in, and whose gradient depends on it."""
    parts = [
        (leaf.float() * leaf.float() if leaf.is_floating_point() else leaf.float()).mean()
        for leaf in tree_leaves(output)
        if isinstance(leaf, Tensor)
    ]
    return sum(parts[1:], start=parts[0])


class Calls(nn.Module):
    """A function of the batch; a weight is multiplied into its floating-point inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *batch: Tensor) -> Tensor:
        inputs = [t * self.scale.reshape([1] * t.dim()) if t.is_floating_point() else t for t in batch]
        loss = loss_of(self.function(*inputs))
        if torch.is_grad_enabled() and not loss.requires_grad:
            return loss + sum(t.mean() for t in (*inputs, self.scale) if t.is_floating_point())
        return loss


class Layer(nn.Module):
    """A layer between the batch and the loss."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.layer = layer

    def forward(self, *batch: Tensor) -> Tensor:
        first, *rest = batch
        if first.is_floating_point():
            first = first * self.scale.reshape([1] * first.dim())
        loss = loss_of(self.layer(first, *rest))
        return loss if batch[0].is_floating_point() else loss + self.scale.sum()


def floats(*shape: int) -> Tensor:
    return torch.rand(B, *shape, generator=torch.Generator().manual_seed(1)) * 0.8 + 0.1


def ints(*shape: int, below: int = 3) -> Tensor:
    return torch.randint(0, below, (B, *shape), generator=torch.Generator().manual_seed(2))


def bools(*shape: int) -> Tensor:
    return ints(*shape, below=2).bool()


def function(name: str, body: Callable[..., Any], *batch: Tensor, train: bool = True) -> Case:
    return Case(name, lambda: Calls(body), batch or (floats(8),), train)


def layer(name: str, make: Callable[[], nn.Module], *batch: Tensor, train: bool = True) -> Case:
    return Case(name, lambda: Layer(make()), batch or (floats(8),), train)
