"""Nets of many shapes for the tests of weight streaming: what users write, and what breaks assumptions about layers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8


def blocks(count: int, *args: Any, kind: type[nn.Module] | None = None, **kwargs: Any) -> nn.ModuleList:
    return nn.ModuleList((kind or Block)(*args, **kwargs) for _ in range(count))


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.drop(self.net(self.norm(x)))
        return out


class Stack(nn.Module):
    """Blocks one after the other: the plain case."""

    def __init__(self, count: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = blocks(count, dropout)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 3),
    )


class NoLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.third(F.gelu(self.second(F.relu(self.first(x))))) * self.scale
        return scores


class Gpt(nn.Module):
    """Tied embeddings, causal attention with a mask in a buffer."""

    def __init__(self, count: int = 4, tied: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, WIDTH), nn.Parameter(torch.randn(6, WIDTH) * 0.1)
        self.blocks = blocks(count, dropout, kind=AttentionBlock)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, causal=True)
        scores: Tensor = self.head(self.norm(x))
        return scores


class AttentionBlock(nn.Module):
    mask: Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.tail = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Block(dropout)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: Tensor, *, causal: bool) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mask = self.mask[: x.shape[1], : x.shape[1]] if causal else None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        out: Tensor = self.tail(x + self.out(mixed))
        return out


class UNet(nn.Module):
    """Skip connections, BatchNorm, convolutions in channels_last."""

    def __init__(self, channels_last: bool = False) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            for a, b in [(2, 4), (4, 6), (6, 8)]
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in [(8, 6), (6, 4)])
        self.merge = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in [(12, 6), (8, 4)])
        self.head = nn.Conv2d(4, 3, 1)
        if channels_last:
            self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for level, (up, merge) in enumerate(zip(self.up, self.merge, strict=True)):
            x = F.relu_(merge(torch.cat([up(x), kept[-2 - level]], 1)))
        scores: Tensor = self.head(x)
        return scores


class Shared(nn.Module):
    """As in ALBERT: two layers, each called several times, and once in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(3, 0.1), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for index in (0, 1, 0, 1, 2, 1, 0):
            x = self.blocks[index](x)
        scores: Tensor = self.head(x)
        return scores


class Wandering(nn.Module):
    """LayerDrop and an order that depends on the data; some layers have no part in some steps."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.blocks, self.head = blocks(count), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.randperm(len(self.blocks)).tolist() if self.training else range(len(self.blocks))
        for index in order:
            if self.training and (torch.rand(()) < 0.5 or float(x.detach().sum()) % 1 < 0.2):
                continue
            x = self.blocks[index](x)
        scores: Tensor = self.head(x)
        return scores


class Frozen(nn.Module):
    """Some layers frozen, in others a bias, and the one outside; the last is never used."""

    def __init__(self, first_only: bool = False) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = nn.Linear(WIDTH, WIDTH), blocks(6), nn.Linear(WIDTH, 3)
        for index, block in enumerate(self.blocks):
            block.requires_grad_(index % 2 == 0 and not first_only)
        self.blocks[2].net[0].bias.requires_grad_(False)
        self.stem.requires_grad_(first_only)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks[:-1]:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class LoraBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.base(x) + self.up(self.down(x)))


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks, self.head = blocks(4, kind=LoraBlock), nn.Linear(WIDTH, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class Sometimes(nn.Module):
    """A layer's second weight has a part in every second call only, by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(5, kind=TwoWays), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x, second=float(x.detach().abs().sum()) * (index + 1) % 1 < 0.4)
        scores: Tensor = self.head(x)
        return scores


class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, second: bool) -> Tensor:
        return x + torch.tanh(self.second(x) if second else self.first(x))


@dataclass
class Parts:
    x: Tensor
    more: dict[str, Any]


class Structured(nn.Module):
    """Layers take and give tuples, dicts, dataclasses, None, numbers and text."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = blocks(5, kind=StructuredLayer), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts, kept = Parts(x, {"sum": x.sum(), "label": None}), []
        for index, layer in enumerate(self.layers):
            parts, (mean, text) = layer(
                parts, index, scale=0.5, flags={"deep": [True, None]}, name=f"l{index}"
            )
            kept.append(mean)
            assert text == f"l{index}"
        scores: Tensor = self.head(parts.x) + torch.stack(kept).sum() + 0.01 * parts.more["sum"]
        return scores


class StructuredLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.gain = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(()))

    def forward(
        self, parts: Parts, index: int, *, scale: float, flags: dict[str, Any], name: str
    ) -> tuple[Parts, tuple[Tensor, str]]:
        assert flags["deep"][0] is True
        y = parts.x + torch.tanh(self.lin(parts.x)) * scale * self.gain / (index + 1)
        return Parts(y, {"sum": y.sum() + parts.more["sum"], "label": index}), (y.mean(), name)


class SideLoss(nn.Module):
    """Layers keep a loss on themselves, as mixtures of experts do, and count their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(5, kind=Router), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        side = sum(block.loss for block in self.blocks)
        scores: Tensor = self.head(x) + 0.1 * side
        return scores


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(Block() for _ in range(2))
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        self.loss = (shares.mean(0) ** 2).sum()
        out: Tensor = sum(
            share.unsqueeze(-1) * expert(x)
            for share, expert in zip(shares.unbind(-1), self.experts, strict=True)
        )
        return out


class Remembering(nn.Module):
    """State on a layer outside its buffers: a number, a tensor, a list; and Python's own random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(4, kind=RememberingBlock), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class RememberingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.seen = Block(0.1), 0, []
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        if random.random() < 0.3:
            x = x * 0.5
        y: Tensor = self.inner(x) * (1 + 0.1 * (self.calls % 3) + 0.01 * len(self.seen))
        if self.last is not None and self.last.shape == y.shape:
            y = y + 0.1 * self.last
        self.last = y.detach()
        return y


class InPlace(nn.Module):
    """Layers that write into their input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(WIDTH, WIDTH), blocks(4, kind=InPlaceBlock)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class InPlaceBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.lin = nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lin(self.act(x))
        return out.add_(1.0)


class Writer(nn.Module):
    """A layer whose work is in its argument alone: it gives nothing back."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(3, kind=WriterBlock), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        for block in self.blocks:
            assert block(state, x) is None
        scores: Tensor = self.head(state)
        return scores


class WriterBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, state: Tensor, x: Tensor) -> None:
        state.add_(torch.tanh(self.lin(x)))


class Queries(nn.Module):
    """Layers that give a weight of theirs, or a view of it, as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = blocks(5, kind=QueryLayer), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        given = [layer(x) for layer in self.layers]
        scores: Tensor = self.head(sum(y * q for y, q in given) + given[0][1].t().t().mean(0))
        return scores


class QueryLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.lin = nn.Parameter(torch.randn(1, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.lin(x), self.query.expand(x.shape[0], -1)


class Odd(nn.Module):
    """Layers without weights, weights without elements, weights with one, a list in a list, an alias of the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [Block(), nn.GELU(), nn.Identity(), nn.ModuleList([Block(), OddBlock()]), Block()]
        )
        self.all = nn.ModuleList([self.layers[0], self.layers[4]])
        self.head, self.nothing = nn.Linear(WIDTH, 3), nn.Parameter(torch.empty(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            for part in layer if isinstance(layer, nn.ModuleList) else [layer]:
                x = part(x)
        for layer in self.all:
            x = layer(x)
        scores: Tensor = self.head(x) + self.nothing.sum()
        return scores


class OddBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.empty, self.gain = nn.Parameter(torch.empty(0)), nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain + self.bias + self.empty.sum()


class LateBatchNorm(nn.Module):
    """BatchNorm that is frozen in the first steps, and a buffer that a layer replaces."""

    num_calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = blocks(3, kind=NormedBlock), nn.Linear(WIDTH, 3)
        self.register_buffer("num_calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_calls += 1
        for block in self.blocks:
            block.norm.train(self.training and int(self.num_calls) > 2)
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class NormedBlock(nn.Module):
    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("level", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.level = 0.9 * self.level + 0.1 * x.detach().abs().mean()
        return x + F.gelu(self.norm(self.lin(x))) / (1 + self.level)


class Attention(nn.Module):
    """torch's own transformer layers, with padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.mixers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) * torch.linspace(0.5, 1.5, 5)[:, None]
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[0, 3:] = True
        x = self.encoder(x, src_key_padding_mask=padding)
        for mixer in self.mixers:
            x = x + mixer(x, x, x, need_weights=False, key_padding_mask=padding)[0]
        scores: Tensor = self.head(x.mean(1))
        return scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)]
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1).expand(-1, 4, -1)
        for layer in self.layers:
            x, _ = layer(x)
        scores: Tensor = self.head(x[:, -1])
        return scores


class Normed(nn.Module):
    """Weights that are made of weights: weight_norm and spectral_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
                nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
            )
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        scores: Tensor = self.head(x)
        return scores


class Checkpointed(Stack):
    """A user's own checkpointing around the layers."""

    def __init__(self) -> None:
        super().__init__(4, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        scores: Tensor = self.head(x)
        return scores


class TwoTowers(nn.Module):
    """One half without gradients, as of a teacher; the other is called twice, once without."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = blocks(3, kind=Block), blocks(3, kind=Block)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = x
            for block in self.teacher:
                target = block(target)
            for block in self.student:
                target = block(target)
        y = x
        for block in self.student:
            y = block(y)
        scores: Tensor = self.head(y) + ((y - target) ** 2).mean()
        return scores


class Hooked(Stack):
    """A user's hooks on gradients, of a layer's weight and of one outside; a weight that is frozen after some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        mask = (torch.arange(WIDTH) < 3).float()
        self.blocks[1].net[0].weight.register_hook(lambda grad: grad * mask)
        self.head.weight.register_hook(lambda grad: grad * mask)

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += self.training
        self.blocks[2].requires_grad_(self.num_calls < 3)
        self.blocks[3].norm.bias.requires_grad_(self.num_calls != 4)
        return super().forward(x)
