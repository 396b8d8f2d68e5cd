"""Small models that the tests of the executor wrap, and what plain torch computes for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Classifier(nn.Module):
    """Two layers; gives the logits, and with labels the loss, too."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 3)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.last(self.dropout(torch.relu(self.norm(self.first(x)))))
        return logits if labels is None else (logits, self.loss(logits, labels))


def make_batch(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def train_plainly(
    model: nn.Module,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    *,
    micro: int,
    per_update: int,
    mean: bool = True,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Trains a copy in plain torch, `per_update` micro-batches of `micro` samples an update; gives its state and all losses."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for x, y in batches:
        for start in range(0, len(x), micro * per_update):
            optimizer.zero_grad()
            for step in range(per_update):
                part = slice(start + step * micro, start + (step + 1) * micro)
                _, loss = model(x[part], y[part])
                losses.append(loss.detach())
                (loss / per_update if mean else loss).backward()
            optimizer.step()
    return model.state_dict(), losses
