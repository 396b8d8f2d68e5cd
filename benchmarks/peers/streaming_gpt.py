"""The GPT of benchmarks/streaming.py, its weights and its data: one text for every contestant."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS_A_CHUNK = 8192  # of the loss: its logits are never all there at once
ADAMW: dict[str, Any] = {"lr": 3e-5, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@dataclass(frozen=True)
class Shape:
    layers: int = 16
    width: int = 4096
    vocab: int = 32768
    length: int = 2048

    @property
    def heads(self) -> int:
        return max(1, self.width // 128)

    @property
    def num_parameters(self) -> int:
        norms = (4 * self.layers + 2) * self.width
        return 12 * self.layers * self.width**2 + 2 * self.vocab * self.width + norms


class Block(nn.Module):
    """Attention and a feed-forward network; `recompute` keeps only its input for backward."""

    def __init__(self, width: int, heads: int, recompute: str) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x_btd: Tensor) -> Tensor:
        if self.recompute == "none":
            return self.compute(x_btd)
        result: Tensor = checkpoint(self.compute, x_btd, use_reentrant=self.recompute == "reentrant")
        return result

    def compute(self, x_btd: Tensor) -> Tensor:
        b, t, d = x_btd.shape
        qkv = self.qkv(self.norm1(x_btd)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btd = x_btd + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        widened: Tensor = F.gelu(self.up(self.norm2(x_btd)), approximate="tanh")
        result: Tensor = x_btd + self.down(widened)
        return result


class NextTokenLoss(torch.autograd.Function):
    """Mean cross-entropy of head and hidden states, some tokens at a time; gradients are made on the way forward."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_vd: Tensor, labels_n: Tensor, dtype: torch.dtype) -> Tensor:
        weight = weight_vd.detach().to(dtype)
        total = torch.zeros((), device=x_nd.device, dtype=torch.float32)
        trains = any(ctx.needs_input_grad)
        grad_x = torch.empty_like(x_nd) if trains else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if trains else None
        scale = 1 / x_nd.shape[0]
        for begin in range(0, x_nd.shape[0], TOKENS_A_CHUNK):
            part = slice(begin, begin + TOKENS_A_CHUNK)
            x, labels = x_nd.detach()[part].to(dtype), labels_n[part]
            logs = torch.log_softmax(x @ weight.T, -1, dtype=torch.float32)
            total += F.nll_loss(logs, labels, reduction="sum")
            if grad_x is None or grad_weight is None:
                continue
            slope = logs.exp_()
            slope[torch.arange(len(labels), device=labels.device), labels] -= 1
            narrow = slope.mul_(scale).to(dtype)
            grad_x[part] = narrow @ weight
            grad_weight += narrow.T @ x
        if trains:
            ctx.save_for_backward(grad_x, grad_weight.to(weight_vd.dtype))  # type: ignore[union-attr]
        return total * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * grads[0], grad_weight * grads[0], None, None


class Head(nn.Module):
    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))

    def forward(self, x_btd: Tensor, labels: Tensor) -> Tensor:
        dtype = compute_dtype(self.weight)
        loss: Tensor = NextTokenLoss.apply(x_btd.flatten(0, 1), self.weight, labels.flatten(), dtype)  # type: ignore[no-untyped-call]
        return loss


def compute_dtype(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


class GPT(nn.Module):
    """Returns the loss of the next token."""

    def __init__(self, shape: Shape, recompute: str = "none") -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, recompute) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = Head(shape.width, shape.vocab)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + _waves(ids.shape[1], x.shape[-1], ids.device)
        x = x.to(
            compute_dtype(self.tokens.weight)
        )  # so that blocks add up in it, and keep half as much for backward
        for block in self.blocks:
            x = block(x)
        loss: Tensor = self.head(self.norm(x), labels)
        return loss


def _waves(length: int, width: int, device: torch.device) -> Tensor:
    """Positions as sines and cosines, as small as the embeddings are at the start."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(1e4) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return 0.02 * torch.cat((angles.sin(), angles.cos()), -1)


def make_empty(shape: Shape, device: str, recompute: str = "none") -> GPT:
    """Memory and no values: 3.5 billion weights drawn one by one on a host take minutes."""
    with torch.device("meta"):
        net = GPT(shape, recompute)
    return net.to_empty(device=device)


@torch.no_grad()
def fill_weights(named: Iterable[tuple[str, Tensor]], shape: Shape, device: str) -> None:
    """Every weight from a seed of its own name, drawn on `device`: the same for all, wherever they keep it."""
    for name, weight in named:
        if weight.dim() == 1:
            weight.fill_(1.0 if name.endswith("weight") else 0.0)
            continue
        spread = 0.02 / math.sqrt(2 * shape.layers) if name.endswith(("out.weight", "down.weight")) else 0.02
        draw = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        weight.copy_(torch.empty(weight.shape, device=device).normal_(0, spread, generator=draw))


def group_weights(net: nn.Module) -> list[dict[str, Any]]:
    """For an AdamW that does not decay norms, as is usual."""
    weights = list(net.parameters())
    matrices, vectors = [w for w in weights if w.dim() > 1], [w for w in weights if w.dim() == 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def make_batch(shape: Shape, num_tokens: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens whose frequencies differ, so that there is something to learn from the first step on."""
    draw = torch.Generator().manual_seed(1000 + step)
    drawn = torch.rand(num_tokens // shape.length, shape.length + 1, generator=draw)
    ids = (drawn**4 * shape.vocab).long()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
