"""GPT of any size as a plain nn.Module, for benchmarks; `portwright plan benchmarks/gpt.py:gpt3_175b` plans the largest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x_btd: Tensor) -> Tensor:
        b, t, d = x_btd.shape
        qkv = self.qkv(self.norm1(x_btd)).view(b, t, 3, self.num_heads, d // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btd = x_btd + self.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, d)))
        return x_btd + self.dropout(self.down(F.gelu(self.up(self.norm2(x_btd)))))


class GPT(nn.Module):
    """Returns the loss of the next token; the head shares the embedding's weights where it `ties` them."""

    def __init__(
        self,
        num_layers: int,
        width: int,
        num_heads: int,
        vocab: int = 50257,
        length: int = 2048,
        ties: bool = True,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if ties:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def gpt_111m() -> GPT:
    return GPT(12, 768, 12)


def gpt_111m_96_layers() -> GPT:
    return GPT(96, 768, 12)


def gpt_111m_384_layers() -> GPT:
    return GPT(384, 768, 12)


def gpt3_175b() -> GPT:
    return GPT(96, 12288, 96)
