"""Reductions, order statistics, pointwise functions, norms, pools, losses and transforms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from unit.layers.legal.equality import assert_equal_calls, assert_equal_modules, values

from portwright.errors import UserError
from portwright.layers import legal

NAN = torch.tensor([[1.0, math.nan, 2.0], [3.0, 1.0, 2.0]], dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), keepdim=st.booleans())
def test_order_statistics(data, shape, keepdim):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[dim]))
    q = data.draw(st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0]))
    how = data.draw(st.sampled_from(["linear", "lower", "higher", "midpoint", "nearest"]))
    x = values(*shape)
    assert_equal_calls(lambda x: torch.median(x, dim, keepdim), lambda x: legal.median(x, dim, keepdim), x)
    assert_equal_calls(torch.median, legal.median, x)
    assert_equal_calls(
        lambda x: torch.kthvalue(x, k, dim, keepdim), lambda x: legal.kthvalue(x, k, dim, keepdim), x
    )
    for d in (dim, None):
        assert_equal_calls(
            lambda x, d=d: torch.quantile(x, q, d, keepdim, interpolation=how),
            lambda x, d=d: legal.quantile(x, q, d, keepdim, interpolation=how),
            x,
        )


def test_median_of_equal_values_shares_the_gradient():
    x = torch.tensor([1.0, 2.0, 2.0, 2.0, 5.0], dtype=torch.float64)
    assert_equal_calls(torch.median, legal.median, x)


def test_nan_is_the_median():
    assert_equal_calls(
        lambda x: torch.median(x, 1).values, lambda x: legal.median(x, 1).values, NAN, differentiable=False
    )
    assert legal.median(NAN).isnan()
    assert legal.quantile(NAN, 0.5, 1).isnan().tolist() == [True, False]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_cumulative(data, shape):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    for name in ("cummax", "cummin", "logcumsumexp"):
        ours, theirs = getattr(legal, name), getattr(torch, name)
        assert_equal_calls(lambda x, f=theirs: f(x, dim), lambda x, f=ours: f(x, dim), values(*shape))


def test_cummax_of_equal_values_names_the_last():
    x = torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0, -math.inf], dtype=torch.float64)
    assert torch.equal(legal.cummax(x, 0).indices, torch.cummax(x, 0).indices)
    assert torch.equal(legal.cummin(x, 0).values, torch.cummin(x, 0).values)


def test_logcumsumexp_of_large_values():
    assert_equal_calls(lambda x: x.logcumsumexp(0), lambda x: legal.logcumsumexp(x, 0), values(5) * 1000)


@pytest.mark.parametrize("dim", [None, 0, (1, 0), (-1, -2), (2, 0, 1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(dim, keepdim):
    x = values(3, 4, 5)
    for name in ("amax", "amin") if dim is not None else ():
        ours, theirs = getattr(legal, name), getattr(torch, name)
        assert_equal_calls(lambda x, f=theirs: f(x, dim, keepdim), lambda x, f=ours: f(x, dim, keepdim), x)
    holes = torch.where(values(3, 4, 5, seed=4) > 1, math.nan, 1.0) * x
    for name in ("nansum", "nanmean"):
        ours, theirs = getattr(legal, name), getattr(torch, name)
        assert_equal_calls(
            lambda x, f=theirs: f(x, dim, keepdim), lambda x, f=ours: f(x, dim, keepdim), holes
        )
    if dim is not None:
        assert_equal_calls(lambda x: x.sum(dim, keepdim), lambda x: legal.sum(x, dim, keepdim), x)
        assert_equal_calls(lambda x: x.logsumexp(dim, keepdim), lambda x: legal.logsumexp(x, dim, keepdim), x)
    for name in ("var_mean", "std_mean", "var", "std"):
        ours, theirs = getattr(legal, name), getattr(torch, name)
        for correction in (0, 1):
            assert_equal_calls(
                lambda x, f=theirs, c=correction: f(x, dim, correction=c, keepdim=keepdim),
                lambda x, f=ours, c=correction: f(x, dim, correction=c, keepdim=keepdim),
                x,
            )
    assert torch.equal(legal.count_nonzero(x > 0, dim), torch.count_nonzero(x > 0, dim))


def test_masked_reductions():
    x, mask = values(4, 5), values(4, 5, seed=1) > 0
    assert_equal_calls(lambda x: x.masked_select(mask).mean(), lambda x: legal.masked_mean(x, mask), x)
    assert_equal_calls(lambda x: x[mask].sum(), lambda x: legal.masked_sum(x, mask), x)
    row = mask[0]
    assert_equal_calls(lambda x: x[:, row].mean(1), lambda x: legal.masked_mean(x, row, 1), x)
    assert legal.masked_mean(x, torch.zeros(4, 5, dtype=torch.bool)).isnan()
    assert legal.masked_sum(x, torch.zeros(4, 5, dtype=torch.bool)) == 0


def test_masked_mean_of_many_halves_is_finite_as_torch_has_it() -> None:
    x = torch.ones(300, 300, dtype=torch.float16)
    mean = legal.masked_mean(x, x > 0)
    assert mean == x.masked_select(x > 0).mean() == 1
    assert mean.dtype == torch.float16


def test_einsum_of_two_batches_of_matrices() -> None:
    for equation, *shapes in (
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("b h i d, b h j d -> b h i j", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("ji,kj->ik", (4, 3), (5, 4)), ("bij,bjk->bik", (1, 3, 1), (2, 4, 5)), ("bij,bkj->bik", (2, 3, 4), (2, 5, 1)),
        ("bij,bjk->bik", (2, 3, 0), (2, 1, 5)), ("bji,bjk->bik", (2, 1, 3), (1, 1, 5)),
    ):  # fmt: skip
        assert_equal_calls(
            lambda a, b, e=equation: torch.einsum(e, a, b), lambda a, b, e=equation: legal.einsum(e, a, b),
            values(*shapes[0]), values(*shapes[1], seed=1),
        )  # fmt: skip


def test_masked_sum_lets_no_infinity_through_the_mask():
    x = torch.tensor([1.0, math.inf, math.nan], requires_grad=True)
    total = legal.masked_sum(x, torch.tensor([True, False, False]))
    total.backward()
    assert total == 1
    assert x.grad.tolist() == [1.0, 0.0, 0.0]


def test_counting():
    index, weights = torch.tensor([0, 3, 3, 6]), values(4)
    assert torch.equal(legal.bincount(index, minlength=8), torch.bincount(index, minlength=8))
    torch.testing.assert_close(legal.bincount(index, weights, 8), torch.bincount(index, weights, 8))
    assert legal.bincount(index, torch.tensor([1, 2, 3, 4]), 8).dtype == torch.float64
    with pytest.raises(ValueError, match="minlength"):
        legal.bincount(index)
    with pytest.raises(UserError, match="minlength=6"):
        legal.bincount(index, minlength=6)


@pytest.mark.parametrize("right", [False, True])
def test_searching(right):
    bounds = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    found = torch.tensor([[-2.0, -1.0, 0.0], [1.0, 2.0, math.nan]])
    for out_int32 in (False, True):
        options = {"right": right, "out_int32": out_int32}
        assert torch.equal(
            legal.searchsorted(bounds, found, **options), torch.searchsorted(bounds, found, **options)
        )
        assert torch.equal(
            legal.bucketize(found, bounds, **options), torch.bucketize(found, bounds, **options)
        )
    rows = torch.stack([bounds, bounds + 1])
    assert torch.equal(
        legal.searchsorted(rows, found, right=right), torch.searchsorted(rows, found, right=right)
    )
    assert torch.equal(legal.searchsorted(bounds, 0.0), torch.searchsorted(bounds, 0.0))
    assert torch.equal(
        legal.searchsorted(bounds, found, side="right"), torch.searchsorted(bounds, found, side="right")
    )


EDGES = torch.tensor([-4.0, -3.0, -1.0, -0.5, -0.3, 0.0, 0.2, 0.5, 1.0, 3.0, 5.0, 80.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (F.selu, legal.selu), (lambda x: F.celu(x, 0.7), lambda x: legal.celu(x, 0.7)),
        (F.hardsigmoid, legal.hardsigmoid), (F.softshrink, legal.softshrink), (F.hardshrink, legal.hardshrink),
        (lambda x: F.prelu(x, torch.tensor([0.2], dtype=x.dtype)), lambda x: legal.prelu(x, torch.tensor([0.2], dtype=x.dtype))),
        (torch.asinh, legal.asinh), (lambda x: torch.atanh(x / 81), lambda x: legal.atanh(x / 81)),
        (torch.erfc, legal.erfc), (torch.trunc, legal.trunc), (torch.frac, legal.frac),
        (torch.exp2, legal.exp2), (lambda x: torch.logit(x.sigmoid() * 0.99), lambda x: legal.logit(x.sigmoid() * 0.99)),
        (lambda x: torch.logit(x, 0.1), lambda x: legal.logit(x, 0.1)),
        (lambda x: torch.lerp(x, x * x, 0.3), lambda x: legal.lerp(x, x * x, 0.3)),
        (lambda x: torch.lerp(x, x * x, x), lambda x: legal.lerp(x, x * x, x)),
        (lambda x: torch.logaddexp(x, x.flip(0)), lambda x: legal.logaddexp(x, x.flip(0))),
        (lambda x: torch.hypot(x, x + 1), lambda x: legal.hypot(x, x + 1)),
        (lambda x: torch.fmax(x, x * x), lambda x: legal.fmax(x, x * x)), (lambda x: torch.fmin(x, x * x), lambda x: legal.fmin(x, x * x)),
    ],
)  # fmt: skip
def test_pointwise_at_its_edges(theirs, ours):
    assert_equal_calls(
        theirs, ours, EDGES, rtol=3e-7
    )  # torch keeps some constants of its own in single precision


def test_infinities():
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64)
    assert_equal_calls(torch.nan_to_num, legal.nan_to_num, x, differentiable=False)
    assert torch.equal(legal.nan_to_num(x, 1.0, 2.0, 3.0), torch.nan_to_num(x, 1.0, 2.0, 3.0))
    for name in ("fmax", "fmin"):
        ours, theirs = getattr(legal, name), getattr(torch, name)
        for other in (x.flip(0), torch.zeros_like(x)):
            torch.testing.assert_close(ours(x, other), theirs(x, other), equal_nan=True)
    y = torch.tensor([math.inf, -math.inf, -math.inf], dtype=torch.float64)
    z = torch.tensor([math.inf, -math.inf, 2.0], dtype=torch.float64)
    assert torch.equal(legal.logaddexp(y, z), torch.logaddexp(y, z))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("dim", [None, 0, (1, 2), -1])
def test_norms(p, dim):
    x = values(3, 4, 5)
    assert_equal_calls(lambda x: torch.norm(x, p, dim), lambda x: legal.norm(x, p, dim), x)
    assert_equal_calls(
        lambda x: torch.linalg.vector_norm(x, p, dim), lambda x: legal.vector_norm(x, p, dim), x
    )
    if dim is None:
        assert_equal_calls(lambda x: torch.dist(x, x * x, p), lambda x: legal.dist(x, x * x, p), x)
        assert_equal_calls(
            lambda x: F.pairwise_distance(x, x * x, p), lambda x: legal.pairwise_distance(x, x * x, p), x
        )
    if isinstance(dim, int):
        assert_equal_calls(lambda x: F.normalize(x, p, dim), lambda x: legal.normalize(x, p, dim), x)


def test_products():
    a, v = values(3, 4), values(4, seed=1)
    assert_equal_calls(torch.mv, legal.mv, a, v)
    assert_equal_calls(torch.vdot, legal.vdot, v, v * 2)


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 10])
def test_linspace(steps):
    torch.testing.assert_close(legal.linspace(-1, 3, steps), torch.linspace(-1, 3, steps))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4), (3, 5)])
@pytest.mark.parametrize("options", [{}, {"affine": True}, {"track_running_stats": True}, {"track_running_stats": True, "momentum": 0.3, "eps": 0.1}])  # fmt: skip
def test_instance_norm(shape, options):
    name = {2: "InstanceNorm1d", 3: "InstanceNorm1d", 4: "InstanceNorm2d", 5: "InstanceNorm3d"}[len(shape)]
    theirs, ours = getattr(nn, name)(3, **options).double(), getattr(legal, name)(3, **options).double()
    for step in range(3):
        assert_equal_modules(theirs, ours, values(*shape, seed=step))
    assert_equal_modules(theirs.eval(), ours.eval(), values(*shape))


def test_instance_norm_of_one_value_raises():
    with pytest.raises(ValueError, match="more than one"):
        legal.instance_norm(values(2, 3, 1))


def test_batch_norm_that_keeps_nothing():
    w, b = values(3, seed=1), values(3, seed=2)
    assert_equal_calls(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: legal.batch_norm(x, None, None, w, b, True),
        values(2, 3, 4), w, b,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(data=st.data(), num_dims=st.integers(1, 3), batched=st.booleans())
def test_adaptive_max_pool(data, num_dims, batched):
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=num_dims, max_size=num_dims))
    targets = data.draw(
        st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=num_dims, max_size=num_dims)
    )
    lead = (2, 3) if batched else (3,)
    name = f"AdaptiveMaxPool{num_dims}d"
    targets = targets[0] or 2 if num_dims == 1 else targets
    assert_equal_calls(getattr(nn, name)(targets), getattr(legal, name)(targets), values(*lead, *sizes))


def test_of_equal_maxima_the_same_one_gets_the_gradient():
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    assert_equal_calls(nn.AdaptiveMaxPool2d((2, 3)), legal.AdaptiveMaxPool2d((2, 3)), x)


@settings(max_examples=60, deadline=None)
@given(
    num_dims=st.integers(1, 3),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    ceil_mode=st.booleans(),
    include=st.booleans(),
    divisor=st.sampled_from([None, 3]),
    size=st.integers(4, 7),
)
def test_avg_pool(num_dims, kernel, stride, padding, ceil_mode, include, divisor, size):
    padding = min(padding, kernel // 2)
    options = (kernel, stride, padding, ceil_mode, include, *([divisor] if num_dims > 1 else []))
    name = f"avg_pool{num_dims}d"
    theirs, ours = getattr(F, name), getattr(legal, name)
    assert_equal_calls(
        lambda x: theirs(x, *options), lambda x: ours(x, *options), values(2, 3, *[size] * num_dims)
    )


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((2, 3), (2, 3))])
def test_max_unpool(options):
    pooled, indices = F.max_pool2d(values(2, 3, 7, 9), *options, return_indices=True)
    for size in ((7, 9), *([None] if options == (3, 2, 1) else [])):
        assert_equal_calls(
            lambda x, s=size: nn.MaxUnpool2d(*options)(x, indices, s),
            lambda x, s=size: legal.MaxUnpool2d(*options)(x, indices, s),
            pooled,
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction):
    x, target, weight = values(4, 5), values(4, 5, seed=1), values(4, 5, seed=2).abs()
    labels = torch.tensor([0, 4, 2, 2])
    pairs = [
        (nn.SmoothL1Loss(reduction=reduction, beta=0.7), legal.SmoothL1Loss(reduction=reduction, beta=0.7), (x, target)),
        (nn.SmoothL1Loss(reduction=reduction, beta=0.0), legal.SmoothL1Loss(reduction=reduction, beta=0.0), (x, target)),
        (nn.SoftMarginLoss(reduction=reduction), legal.SoftMarginLoss(reduction=reduction), (x, labels.unsqueeze(1))),
        (nn.HuberLoss(reduction, 0.6), legal.HuberLoss(reduction, 0.6), (x, target)),
        (nn.GaussianNLLLoss(full=True, eps=0.5, reduction=reduction), legal.GaussianNLLLoss(full=True, eps=0.5, reduction=reduction), (x, target, weight)),
        (nn.MultiMarginLoss(2, 0.8, reduction=reduction), legal.MultiMarginLoss(2, 0.8, reduction=reduction), (x, labels)),
        (nn.BCELoss(weight, reduction=reduction), legal.BCELoss(weight, reduction=reduction), (x.sigmoid(), target.sigmoid())),
    ]  # fmt: skip
    for theirs, ours, inputs in pairs:
        assert_equal_calls(theirs, ours, *inputs)


def test_binary_cross_entropy_at_its_ends():
    p = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 1e-14], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 1.0], dtype=torch.float64)
    assert_equal_calls(
        lambda p: F.binary_cross_entropy(p, t), lambda p: legal.binary_cross_entropy(p, t), p, rtol=1e-7
    )
    assert_equal_calls(
        lambda p: F.binary_cross_entropy(p, t.float()),
        lambda p: legal.binary_cross_entropy(p, t.float()),
        p.float(),
    )


def test_binary_cross_entropy_in_half_precision_is_taken_in_single():
    p = torch.tensor([0.25, 0.75], dtype=torch.float16)
    result = legal.binary_cross_entropy(p, torch.tensor([0.0, 1.0], dtype=torch.float16))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, F.binary_cross_entropy(p.float(), torch.tensor([0.0, 1.0])))


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding_bag(mode, padding_idx):
    if mode == "max" and padding_idx is not None:
        pytest.skip("torch's own is kept there")
    options = {"mode": mode, "padding_idx": padding_idx}
    entries = torch.tensor([[1, 2, 3], [2, 2, 2], [0, 4, 4]])
    theirs, ours = nn.EmbeddingBag(6, 3, **options).double(), legal.EmbeddingBag(6, 3, **options).double()
    assert_equal_modules(theirs, ours, entries)
    if mode == "sum":
        assert_equal_modules(theirs, ours, entries, None, values(3, 3))
    offsets = torch.tensor([0, 2])
    torch.testing.assert_close(ours(entries.flatten(), offsets), theirs(entries.flatten(), offsets))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 12),
    n=st.one_of(st.none(), st.integers(1, 14)),
    dim=st.sampled_from([0, 1, -1]),
    norm=st.sampled_from([None, "backward", "ortho", "forward"]),
)
def test_fourier(size, n, dim, norm):
    shape = [3, 4]
    shape[dim] = size
    x, y = values(*shape), values(*shape, seed=1)

    def parts(z):
        return z.real, z.imag

    def both(x, y):
        return torch.complex(x, y)

    assert_equal_calls(
        lambda x: parts(torch.fft.rfft(x, n, dim, norm)), lambda x: legal.rfft_parts(x, n, dim, norm), x
    )
    assert_equal_calls(
        lambda x, y: parts(torch.fft.fft(both(x, y), n, dim, norm)),
        lambda x, y: legal.fft_parts(x, y, n, dim, norm),
        x,
        y,
    )
    assert_equal_calls(
        lambda x, y: parts(torch.fft.ifft(both(x, y), n, dim, norm)),
        lambda x, y: legal.ifft_parts(x, y, n, dim, norm),
        x,
        y,
    )
    if n is not None or size > 1:
        assert_equal_calls(
            lambda x, y: torch.fft.irfft(both(x, y), n, dim, norm),
            lambda x, y: legal.irfft_parts(x, y, n, dim, norm),
            x,
            y,
        )
    assert_equal_calls(
        lambda x: torch.fft.rfft(x, n, dim, norm).abs() ** 2,
        lambda x: legal.power_spectrum(x, n, dim, norm),
        x,
    )


def test_magnitude_at_zero():
    x = torch.tensor([0.0, 3.0], dtype=torch.float64)
    y = torch.tensor([0.0, 4.0], dtype=torch.float64)
    assert_equal_calls(lambda x, y: torch.complex(x, y).abs(), legal.magnitude, x, y)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("shape", [(40,), (2, 40)])
def test_stft(center, normalized, shape):
    window = torch.hann_window(8, dtype=torch.float64)

    def theirs(x):
        z = torch.stft(x, 8, 3, window=window, center=center, normalized=normalized, return_complex=True)
        return z.real, z.imag

    assert_equal_calls(
        theirs,
        lambda x: legal.stft_parts(x, 8, 3, window, center=center, normalized=normalized),
        values(*shape),
    )


def test_single_precision_transform_of_a_large_size():
    x = values(2, 512, dtype=torch.float32)
    real, imag = legal.rfft_parts(x)
    z = torch.fft.rfft(x.double())
    torch.testing.assert_close(real.double(), z.real, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(imag.double(), z.imag, rtol=1e-4, atol=1e-4)
