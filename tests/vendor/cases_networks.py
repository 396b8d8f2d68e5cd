"""Whole networks of the kinds that people bring, written as they write them, and small."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vendor.case import B, Case, floats, ints


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.nll_loss(F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1), y)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(x + self.norm2(self.conv2(y)), inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 5)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.fc(self.pool(self.blocks(self.stem(x))).flatten(1)), y)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.depthwise(F.silu(self.expand(x))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return (x * gate[:, :, None, None]).float().pow(2).mean()


class UNet(nn.Module):
    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up: nn.Module = (
            nn.ConvTranspose2d(8, 4, 2, stride=2)
            if transposed
            else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 1))
        )
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        y = F.relu(self.mid(F.max_pool2d(skip, 2)))
        y = torch.cat([skip, self.up(y)], dim=1)
        return F.binary_cross_entropy_with_logits(self.out(y), target)


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(CausalBlock(8, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 11), ids[:, 1:].reshape(-1))


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.register_buffer("rates", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))

    def forward(self, x: Tensor) -> Tensor:
        q = self.proj(x)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.rates)
        angles = torch.cat((angles, angles), dim=-1)
        left, right = q.chunk(2, dim=-1)
        turned = q * angles.cos() + torch.cat((-right, left), dim=-1) * angles.sin()
        return F.scaled_dot_product_attention(turned, turned, x, is_causal=True).float().pow(2).mean()


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.positions = nn.Parameter(torch.zeros(1, 5, 8))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        return F.cross_entropy(self.head(self.encoder(x)[:, 0]), y)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(8), nn.Linear(6, 6), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return (x + F.gelu(self.channels(x))).float().pow(2).mean()


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_var = self.encode(x).chunk(2, dim=-1)
        std = torch.exp(0.5 * log_var)
        z = mean + torch.randn_like(std) * std
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        return F.mse_loss(self.decode(z), x, reduction="sum") + divergence


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.LeakyReLU(0.2))
        self.decode = nn.Sequential(nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.decode(self.encode(x)), x)


class Unrolled(nn.Module):
    """A hand-written LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(8 + 6, 4 * 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 6, device=x.device)
        c = torch.zeros_like(h)
        for step in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat((x[:, step], h), dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h).float().pow(2).mean()


class Mixture(nn.Module):
    """Experts that a gate chooses two of."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(F.softmax(self.gate(x), dim=-1), 2, dim=-1)
        dense = torch.zeros(x.shape[0], 4, device=x.device, dtype=weights.dtype).scatter(1, chosen, weights)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (outputs * dense.unsqueeze(-1)).sum(1).float().pow(2).mean()


class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        messages = self.linear(x)[neighbours]
        summed = torch.zeros_like(messages).index_add_(0, neighbours, messages)
        return summed.float().pow(2).mean()


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(7, 8) for _ in range(3))
        self.dense, self.top = nn.Linear(5, 8), nn.Linear(8 + 6, 1)

    def forward(self, dense: Tensor, sparse: Tensor, clicks: Tensor) -> Tensor:
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        x = F.relu(self.dense(dense))
        stacked = torch.stack([x, *rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs = torch.stack([products[:, i, j] for i in range(4) for j in range(i)], dim=1)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([x, pairs], dim=1)).squeeze(-1), clicks)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = nn.Linear(8, 8), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 8))
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 10))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        alpha = self.alphas[t].unsqueeze(-1)
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        rates = torch.exp(-math.log(10000) * torch.arange(4, device=x.device) / 4)
        angles = t[:, None].float() * rates[None]
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return F.mse_loss(self.net(torch.cat([noisy, embedded], dim=-1)), noise)


class Physics(nn.Module):
    """A network whose own derivative is in its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = (x * 1.0).requires_grad_()
        u = self.net(x).float()
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (slope + u).pow(2).mean()


class Contrastive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = F.normalize(self.net(x), dim=-1), F.normalize(self.net(y), dim=-1)
        logits = a @ b.t() / 0.07
        return F.cross_entropy(logits, torch.arange(B, device=x.device))


class SmoothedLabels(nn.Module):
    """Label smoothing as in the annotated transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(self.net(x), dim=-1)
        target = torch.full_like(log_p, 0.1 / 4).scatter_(1, y.unsqueeze(1), 0.9)
        return F.kl_div(log_p, target, reduction="batchmean")


class Padded(nn.Module):
    """A mean over the words that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        mask = (ids != 0).unsqueeze(-1).float()
        mean = (self.embedding(ids) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        return F.cross_entropy(self.head(mean), y)


class AudioNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 4, 5), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).mean(-1).float().pow(2).mean()


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return (gate * F.elu(self.body(x)) + (1 - gate) * x).float().pow(2).mean()


def networks() -> Iterator[Case]:
    yield Case("network lenet", LeNet, (floats(1, 16, 16), ints()))
    yield Case("network resnet", ResNet, (floats(3, 16, 16), ints()))
    yield Case("network squeeze-excite", SqueezeExcite, (floats(3, 8, 8),))
    yield Case("network unet (transposed)", lambda: UNet(True), (floats(1, 8, 8), floats(1, 8, 8)))
    yield Case("network unet (upsample)", lambda: UNet(False), (floats(1, 8, 8), floats(1, 8, 8)))
    yield Case("network gpt", TinyGPT, (ints(10, below=11),))
    yield Case("network rotary", Rotary, (floats(6, 8),))
    yield Case("network vit", ViT, (floats(3, 8, 8), ints()))
    yield Case("network mixer", Mixer, (floats(6, 8),))
    yield Case("network vae", VAE, (floats(8),))
    yield Case("network autoencoder", Autoencoder, (floats(1, 8, 8),))
    yield Case("network unrolled lstm", Unrolled, (floats(5, 8),))
    yield Case("network mixture of experts", Mixture, (floats(8),))
    yield Case("network graph convolution", GraphConvolution, (floats(8), ints()))
    yield Case("network recommender", Recommender, (floats(5), ints(3), floats()))
    yield Case("network diffusion", Diffusion, (floats(8), ints()))
    yield Case("network physics", Physics, (floats(1),))
    yield Case("network contrastive", Contrastive, (floats(8), floats(8)))
    yield Case("network smoothed labels", SmoothedLabels, (floats(8), ints()))
    yield Case("network padded mean", Padded, (ints(6, below=9), ints()))
    yield Case("network audio", AudioNet, (floats(1, 16),))
    yield Case("network highway", Highway, (floats(8),))
