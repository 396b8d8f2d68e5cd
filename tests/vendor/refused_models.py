"""Four models that the front end refuses, each at one line that carries a mark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from vendor.case import Case


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x).float()
        chosen = hidden.nonzero()  # refused: nonzero
        return hidden.mean() + chosen.float().mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.unsqueeze(1)
        states, _ = self.lstm(hidden)  # refused: lstm
        return self.head(states).float().mean()


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2))

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 4, 2, 1)
        features = self.body(image)  # refused: convolution
        return features.float().mean()


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x).float()
        largest = hidden.max().item()  # refused: _local_scalar_dense
        return (hidden / largest).mean()


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "nonzero": Selects,
    "lstm": Recurrent,
    "convolution": Grouped,
    "_local_scalar_dense": Reads,
}
REFUSED = {name: Case(f"refused {name}", maker, (torch.rand(4, 8),)) for name, maker in _MAKERS.items()}


def marked_line(name: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"# refused: {name}"))
