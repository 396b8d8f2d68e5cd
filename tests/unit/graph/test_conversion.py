"""Models that convert themselves while they are made without memory."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from portwright.graph.capturing.hosts import converting_fakes


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(100, 100)
        self.b = nn.Linear(100, 100)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(100)
        self.a.bias.requires_grad_(False)


def test_fake_weights_are_converted_and_stay_tied() -> None:
    with FakeTensorMode(), converting_fakes():
        model = Tied()
        assert model.to(torch.bfloat16) is model
        assert model.half().float().bfloat16().a.weight.dtype is torch.bfloat16
    assert model.b.weight is model.a.weight
    assert model.norm.running_mean is not None
    assert model.norm.running_mean.dtype is torch.bfloat16
    assert model.norm.num_batches_tracked is not None
    assert model.norm.num_batches_tracked.dtype is torch.int64
    assert not model.a.bias.requires_grad
    assert model.b.bias.requires_grad
    assert [name for name, _ in model.named_parameters()] == [
        "a.weight",
        "a.bias",
        "b.bias",
        "norm.weight",
        "norm.bias",
    ]


def test_real_weights_are_converted_as_ever() -> None:
    apply = nn.Module._apply
    model = Tied()
    kept = model.a.weight
    with converting_fakes():
        model.double()
    assert model.a.weight is kept
    assert kept.dtype is torch.float64
    assert nn.Module._apply is apply
