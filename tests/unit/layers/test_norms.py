from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.errors import UserError
from portwright.layers.norms import BatchChannelNorm2D, RMSNorm, get_norm


def rms_formula(x, weight, eps, dims):
    wide = x.double()
    return wide / (wide.square().mean(dim=dims, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_type", [None, torch.float32])
@pytest.mark.parametrize("eps", [None, 1e-6, 1e-2])
@pytest.mark.parametrize("shape", [(8,), (3, 8)])
def test_rms_norm_computes_wide_and_returns_the_type_it_got(dtype, weight_type, eps, shape):
    torch.manual_seed(0)
    norm = RMSNorm(shape, eps=eps, dtype=weight_type or dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    x = (torch.randn(4, 3, 8) * 3).to(dtype)
    dims = tuple(range(-len(shape), 0))
    expected = rms_formula(x, norm.weight, eps or 0.0, dims)
    result = norm(x)
    assert result.dtype == dtype
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps)
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_rms_norm_does_not_overflow_in_half():
    # 300 squared is beyond float16.
    x = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert torch.equal(RMSNorm(4, eps=1e-6, dtype=torch.float16)(x), torch.ones(1, 4, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_without_eps_serves_small_inputs(dtype):
    # The eps of bfloat16 itself, 0.008, would drown them.
    x = torch.full((1, 4), 0.01).to(dtype)
    torch.testing.assert_close(RMSNorm(4, dtype=dtype)(x).float(), torch.ones(1, 4), atol=5e-3, rtol=0)


def test_rms_norm_has_torchs_arguments_and_state():
    ours, theirs = RMSNorm(8), nn.RMSNorm(8)
    assert ours.eps is None
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]
    assert RMSNorm(8, 1e-6, False).weight is None
    x = torch.randn(2, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(RMSNorm(8, 1e-6, False)(x), F.rms_norm(x, [8], eps=1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_gradients_agree_with_the_formula(dtype):
    torch.manual_seed(0)
    norm = RMSNorm(6, eps=1e-6)
    x = torch.randn(3, 6).to(dtype).requires_grad_()
    expected = torch.autograd.grad(
        rms_formula(x, norm.weight, 1e-6, -1).square().sum() + x.double().sum(), [x, norm.weight]
    )
    result = torch.autograd.grad(norm(x).double().square().sum() + x.double().sum(), [x, norm.weight])
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)


def test_rms_norm_under_autocast():
    norm, x = RMSNorm(8, eps=1e-6), torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(norm(x), F.rms_norm(x, [8], eps=1e-6), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("training", [True, False])
def test_batch_channel_norm_is_batch_norm_then_groups(num_groups, training):
    torch.manual_seed(0)
    norm = BatchChannelNorm2D(num_groups, 6, momentum=0.3)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    norm(torch.randn(5, 6, 3, 4) * 2 + 1)
    norm.train(training)
    x = torch.randn(4, 6, 3, 5)
    batch = norm.batchnorm
    if training:
        mean, variance = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)
    else:
        mean, variance = batch.running_mean.clone(), batch.running_var.clone()
    first = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
    first = first * batch.weight[:, None, None] + batch.bias[:, None, None]
    grouped = first.reshape(4, num_groups, -1)
    second = (grouped - grouped.mean(-1, keepdim=True)) / (
        grouped.var(-1, keepdim=True, unbiased=False) + 1e-5
    ).sqrt()
    expected = (second * norm.weight + norm.bias).reshape(x.shape)
    torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=1e-5)


def test_batch_channel_norm_has_the_model_zoos_state_and_resets():
    norm = BatchChannelNorm2D(2, 4)
    assert {name: tuple(value.shape) for name, value in norm.state_dict().items()} == {
        "weight": (1, 2, 1),
        "bias": (1, 2, 1),
        "batchnorm.weight": (4,),
        "batchnorm.bias": (4,),
        "batchnorm.running_mean": (4,),
        "batchnorm.running_var": (4,),
        "batchnorm.num_batches_tracked": (),
    }
    with torch.no_grad():
        norm.weight.fill_(7)
        norm.batchnorm.bias.fill_(7)
    norm.reset_parameters()
    assert (norm.weight == 1).all()
    assert not norm.batchnorm.bias.any()
    for groups, channels in ((3, 4), (0, 4), (-2, 4), (2, 0)):
        with pytest.raises(UserError, match=f"num_groups={groups}"):
            BatchChannelNorm2D(groups, channels)


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "state"),
    [
        ("layernorm", (8,), nn.LayerNorm, ["weight", "bias"]),
        ("LayerNorm", (8,), nn.LayerNorm, ["weight", "bias"]),
        ("biasless", (8,), nn.LayerNorm, ["weight"]),
        ("biasless-layernorm", (8,), nn.LayerNorm, ["weight"]),
        ("nonparametric-layernorm", (8,), nn.LayerNorm, []),
        ("rmsnorm", (8,), RMSNorm, ["weight"]),
        ("group", (2, 8), nn.GroupNorm, ["weight", "bias"]),
        (None, (8,), nn.Identity, []),
    ],
)
def test_names_make_norms(name, arguments, kind, state):
    norm = get_norm(name)(*arguments, eps=1e-3)
    assert type(norm) is kind
    assert [key for key, _ in norm.named_parameters()] == state
    assert norm(torch.randn(3, 8)).shape == (3, 8)
    if name is not None:
        assert norm.eps == 1e-3


def test_batch_norms_and_classes():
    assert get_norm("batchchannel") is get_norm("batchchannel2d") is BatchChannelNorm2D
    assert get_norm("batchnorm2d") is nn.BatchNorm2d
    assert get_norm("instance1d") is nn.InstanceNorm1d
    assert get_norm(nn.LayerNorm) is nn.LayerNorm


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("rms_norm", "'rms_norm'. Did you mean 'rmsnorm'"),
        ("weight", "Valid: batchchannel"),
        (nn.LayerNorm(4), "a LayerNorm module"),
        (4, "is 4"),
    ],
)
def test_what_is_unknown_is_named(wrong, message):
    with pytest.raises(UserError, match=message):
        get_norm(wrong)


@pytest.mark.parametrize("make", [lambda: RMSNorm(8), lambda: RMSNorm(8, dtype=torch.bfloat16), lambda: None])
def test_compiles_and_exports(make):
    norm = make() or BatchChannelNorm2D(2, 4).eval()
    x = torch.randn(3, 4, 2, 8)
    expected = norm(x)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.export.export(norm, (x,)).module()(x), expected)
