"""Small models of every shape that a pipeline must be able to cut; none of them knows that it will be."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from portwright import PyTorchBaseModel
from portwright.runtime.metrics import AccuracyMetric


class MLP(PyTorchBaseModel):
    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(6, 6), nn.Tanh(), nn.Dropout(params["model"]["dropout"])]
        self.model = nn.Sequential(*layers, nn.Linear(6, 3))
        self.loss_fn = nn.CrossEntropyLoss()
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Any) -> torch.Tensor:
        x, y = data["x"], data["y"]
        logits = self.model(x)
        if not self.model.training:
            self.accuracy(labels=y, predictions=logits.argmax(-1))
        return self.loss_fn(logits, y)


class Block(nn.Module):
    def __init__(self, size: int, num_heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
        self.num_heads = num_heads

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, size // self.num_heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, size))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The embedding is the head's weight, the mask is made in the step, and the loss is in forward."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.is_checkpointed = params["model"].get("checkpoint", False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = ids.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        x = self.embed(ids) + self.places(torch.arange(length))
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.is_checkpointed else block(x, mask)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class TiedModules(GPT):
    """The same weight under two names in the state."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, torch.zeros(1, 1, dtype=torch.bool))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class UNet(nn.Module):
    """Skips over two levels, in-place activations, and BatchNorm where it is asked for."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        size, normed = 3, params["model"].get("batchnorm", False)

        def conv(before: int, after: int) -> nn.Sequential:
            norm = nn.BatchNorm2d(after) if normed else nn.Identity()
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), norm, nn.ReLU(inplace=True))

        self.down1, self.down2, self.middle = conv(1, size), conv(size, 2 * size), conv(2 * size, 2 * size)
        self.up2, self.up1, self.out = conv(4 * size, size), conv(2 * size, size), nn.Conv2d(size, 2, 1)

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        first = self.down1(image)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.middle(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), second], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), first], 1))
        return F.cross_entropy(self.out(x), target)


class Frozen(nn.Module):
    """Layers at the beginning that take no gradient, a layer that nothing uses, and a branch that begins late."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6).requires_grad_(False)
        self.second, self.branch, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(x).relu_())
        index = hidden.detach().argmax(-1)
        return F.cross_entropy(self.last(hidden * self.branch(x).sigmoid()) + index[:, None], y)


class Broken(nn.Module):
    """What cannot be cut, in the ways that params name."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.first, self.last, self.num_calls = nn.Linear(6, 6), nn.Linear(6, 3), 0
        self.how = params["model"]["how"]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.how == "reads" and x.sum() > 0:
            x = -x
        if self.how == "counts":
            self.num_calls += 1
        if self.how == "nan":
            x = x / x.mul(0)
        return F.cross_entropy(self.last(x), y)


MODELS = {kind.__name__: kind for kind in (MLP, GPT, TiedModules, UNet, Frozen, Broken)}


class Samples(Dataset[Any]):
    def __init__(self, model: str, num_samples: int) -> None:
        draw = torch.Generator().manual_seed(7)
        if model in ("GPT", "TiedModules"):
            ids = torch.randint(0, 11, (num_samples, 7), generator=draw)
            self.fields = {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
        elif model == "UNet":
            image = torch.randn(num_samples, 1, 8, 8, generator=draw)
            self.fields = {"image": image, "target": (image[:, 0] > 0).long()}
        else:
            x = torch.randn(num_samples, 6, generator=draw)
            self.fields = {"x": x, "y": x[:, :3].argmax(-1)}

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: field[index] for name, field in self.fields.items()}


def make_loader(params: dict[str, Any], name: str) -> Any:
    section = params[name]
    samples = Samples(params["model"]["name"], section["num_samples"])
    return DataLoader(samples, batch_size=section["batch_size"], shuffle=name == "train_input")


def train_data(params: dict[str, Any]) -> Any:
    return make_loader(params, "train_input")


def eval_data(params: dict[str, Any]) -> Any:
    return make_loader(params, "eval_input")
