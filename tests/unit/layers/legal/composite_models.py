"""Small whole models as users write them, each with several things that the front end refuses, and a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unit.layers.legal.equality import values


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.pointwise(self.depthwise(x))))


class DepthwiseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool, self.head = nn.AdaptiveMaxPool2d(3), nn.Linear(72, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.pool(self.blocks(self.stem(x))).flatten(1))
        smooth = F.one_hot(labels, 5).to(scores.dtype) * 0.9 + 0.02
        return -(smooth * scores.log_softmax(1)).sum((-1, -2))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Linear(10, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(
            self.lstm(self.embed(words))[0] + self.embed(words.flip(1)).repeat(1, 1, 2)[..., :10]
        )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.out, self.act = nn.Conv2d(8, 1, 1), nn.PReLU()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        skip = self.act(self.down(x))
        low = self.act(self.middle(F.max_pool2d(skip, 2)))
        mask = self.out(torch.cat([skip, self.up(low)], 1))
        shrunk = F.interpolate(mask, size=(5, 7), mode="nearest")
        return F.binary_cross_entropy(mask.sigmoid(), target) + shrunk.mean()


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2), nn.InstanceNorm2d(4), nn.PReLU(),
            nn.ReplicationPad2d(1), nn.Conv2d(4, 3, 3), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


COMPOSITES = [
    (DepthwiseNet, (values(4, 3, 12, 12), torch.tensor([0, 1, 4, 2]))),
    (Tagger, (torch.arange(12).reshape(2, 6) % 20,)),
    (UNet, (values(2, 3, 8, 8), values(2, 1, 8, 8, seed=1).sigmoid())),
    (Generator, (values(2, 3, 6, 6),)),
]
