"""The Triton kernels against torch's own ops; with TRITON_INTERPRET=1 and Triton installed they run on a CPU too."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright import gpu_kernels
from portwright.layers.norm_relu import norm_relu
from portwright.losses import chunked_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [7, 1001, 8192, 20000])
def test_cross_entropy_of_a_head(vocab, smoothing):
    torch.manual_seed(0)
    hidden = torch.randn(37, 24, device=DEVICE, requires_grad=True)
    weight = torch.randn(vocab, 24, device=DEVICE, requires_grad=True)
    bias = torch.randn(vocab, device=DEVICE, requires_grad=True)
    targets = torch.randint(0, vocab, (37,), device=DEVICE)
    targets[::5] = -100
    assert gpu_kernels.serves(hidden)
    loss = chunked_cross_entropy(hidden, weight, targets, bias, label_smoothing=smoothing, chunk_tokens=16)
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    expected = F.cross_entropy(F.linear(*wide), targets, label_smoothing=smoothing)
    assert distance(loss, expected) < 1e-5
    found = torch.autograd.grad(loss, (hidden, weight, bias))
    for one, other in zip(found, torch.autograd.grad(expected, wide), strict=True):
        assert distance(one, other) < (1e-2 if DEVICE == "cuda" else 1e-5)  # products may be TF32 there


def test_a_head_in_bfloat16_is_no_worse_than_torchs():
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 32, device=DEVICE), torch.randn(999, 32, device=DEVICE) / 5
    targets = torch.randint(0, 999, (64,), device=DEVICE)
    wide = [tensor.double().requires_grad_() for tensor in (hidden, weight)]
    expected = torch.autograd.grad(F.cross_entropy(F.linear(*wide), targets), wide)
    narrow = [tensor.bfloat16().requires_grad_() for tensor in (hidden, weight)]
    ours = torch.autograd.grad(chunked_cross_entropy(*narrow, targets), narrow)
    torchs = torch.autograd.grad(F.cross_entropy(F.linear(*narrow), targets), narrow)
    for one, other, right in zip(ours, torchs, expected, strict=True):
        assert distance(one, right) < 2 * distance(other, right)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 64, 33, 31), (3, 130, 9, 8), (2, 1, 4, 4)])
def test_batch_norm_with_relu(shape, momentum):
    torch.manual_seed(0)
    channels = shape[1]
    ours = nn.BatchNorm2d(channels, momentum=momentum, device=DEVICE)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    torchs = nn.BatchNorm2d(channels, momentum=momentum, device=DEVICE).double()
    torchs.load_state_dict(ours.state_dict())
    for _ in range(3):
        x = torch.randn(shape, device=DEVICE) * 3 + 20 * torch.randn(channels, 1, 1, device=DEVICE)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        if channels == 1:  # torch tells the formats of one channel apart by a stride that nobody steps over
            height, width = shape[2:]
            x = x.detach().as_strided(x.shape, (height * width, 1, width, 1)).requires_grad_()
        wide = x.detach().double().requires_grad_()
        y, expected = norm_relu(ours, x), F.relu(torchs(wide))
        assert distance(y, expected) < 1e-5
        upstream = torch.randn(shape, device=DEVICE).to(memory_format=torch.channels_last)
        found = torch.autograd.grad(y, (x, *ours.parameters()), upstream)
        right = torch.autograd.grad(expected, (wide, *torchs.parameters()), upstream.double())
        for one, other in zip(found, right, strict=True):
            assert distance(one, other) < 1e-3  # where ReLU's edge is, one rounding decides
    for name, value in torchs.state_dict().items():
        assert distance(ours.state_dict()[name], value) < 1e-5, name


def test_a_gradient_that_is_a_slice_of_channels():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6, device=DEVICE)
    x = torch.randn(2, 6, 5, 5, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_()
    other = torch.randn(2, 4, 5, 5, device=DEVICE).to(memory_format=torch.channels_last)
    upstream = torch.randn(2, 10, 5, 5, device=DEVICE).to(memory_format=torch.channels_last)
    (found,) = torch.autograd.grad(torch.cat([norm_relu(norm, x), other], 1), x, upstream)
    (right,) = torch.autograd.grad(F.relu(norm(x)), x, upstream[:, :6])
    assert distance(found, right) < 1e-4


def test_nan_goes_through():
    x = torch.randn(2, 3, 4, 4, device=DEVICE).to(memory_format=torch.channels_last)
    x[0, 1, 2, 2] = torch.nan
    y = norm_relu(nn.BatchNorm2d(3, device=DEVICE), x)
    assert y[:, 1].isnan().all()
    assert not y[:, 0].isnan().any()
