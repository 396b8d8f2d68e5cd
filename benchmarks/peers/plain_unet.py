"""A U-Net as public projects write it: convolution, batch norm and ReLU as modules of their own, and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def double_conv(num_in: int, num_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (num_in, num_out):
        layers += [
            nn.Conv2d(width, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class PlainUNet(nn.Module):
    def __init__(self, num_in: int, num_out: int, filters: Sequence[int]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            double_conv(a, b) for a, b in zip((num_in, *filters[:-2]), filters[:-1], strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.middle = double_conv(filters[-2], filters[-1])
        pairs = list(zip(filters[:0:-1], filters[-2::-1], strict=True))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.joins = nn.ModuleList(double_conv(a, b) for a, b in pairs)
        self.head = nn.Conv2d(filters[0], num_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for down in self.downs:
            x = down(x)
            passed.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([passed.pop(), up(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits
