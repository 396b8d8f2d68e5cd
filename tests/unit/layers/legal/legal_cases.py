"""Models that the Cerebras front end refuses as they are: torch's own layers and calls, as a user writes them.

Each is used twice: legalised it equals the original on a CPU (test_legalise.py), and the real front end refuses the one and
takes the other (tests/vendor/test_legal_vendor.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROW, SERIES, IMAGE, VOLUME = (4, 8), (4, 6, 8), (2, 4, 8, 8), (2, 4, 4, 4, 4)


class Scaled(nn.Module):
    """What comes in depends on a parameter, so that the gradient of the input is part of the question."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.inner = inner

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.inner(x * self.scale, *more)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    extra: tuple[Callable[[], Tensor], ...] = ()

    def batch(self) -> tuple[Tensor, ...]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return (torch.randn(self.shape), *[make() for make in self.extra])


def of_module(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], *extra: Callable[[], Tensor]
) -> Case:
    return Case(name, lambda: Scaled(make()), shape, extra)


def of_calls(
    name: str, call: Callable[..., Any], shape: tuple[int, ...], *extra: Callable[[], Tensor]
) -> Case:
    return Case(name, lambda: Scaled(call), shape, extra)


def classes(num_classes: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, num_classes, shape)


def probabilities(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.rand(shape)


class Bce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.loss = nn.Linear(8, 3), nn.BCELoss()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.linear(x).sigmoid(), target)


class BceCall(Bce):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(self.linear(x).sigmoid(), target)


class SubclassedLSTM(nn.LSTM):
    """A user's own: what it does around its parent's forward must stay."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        output, _ = super().forward(input, hx)
        return output * 2.0


class SubclassedConv(nn.Conv1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1.0


def set_indexed(x: Tensor, at: Tensor) -> Tensor:
    y = x.clone()
    y[at] = x[:2] * 3.0
    return y


def set_masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = x[0, 0]
    return y


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 8, padding_idx=0)

    def forward(self, x: Tensor, entries: Tensor) -> Tensor:
        return x * self.bag(entries)


class Fixed(nn.Module):
    """A loss whose target gets no gradient."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(x, target.detach())


class Attends(nn.Module):
    """Attention over tokens some of which are padding."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(8, 2, batch_first=True), options

    def forward(self, x: Tensor) -> Any:
        padding = (x[:, :, 0] > 1) & (torch.arange(x.shape[1], device=x.device) > 0)
        return self.attention(x, x, x, key_padding_mask=padding, **self.options)


class Masked(nn.Module):
    """A stack of torch's own, given a mask and left to find out that it is causal."""

    def __init__(self, decodes: bool) -> None:
        super().__init__()
        layer = (nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer)(
            8, 2, 16, 0.0, batch_first=True
        )
        self.stack = (nn.TransformerDecoder if decodes else nn.TransformerEncoder)(layer, 2)
        self.decodes = decodes
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x, x * 0.5, tgt_mask=self.mask) if self.decodes else self.stack(x, mask=self.mask)


MODULES = [
    of_module("TransformerEncoder_masked", lambda: Masked(decodes=False), SERIES),
    of_module("TransformerDecoder_masked", lambda: Masked(decodes=True), SERIES),
    of_module("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), IMAGE),
    of_module("ReflectionPad1d", lambda: nn.ReflectionPad1d(2), SERIES),
    of_module("ReflectionPad3d", lambda: nn.ReflectionPad3d(1), VOLUME),
    of_module("ReplicationPad2d", lambda: nn.ReplicationPad2d(1), IMAGE),
    of_module("ReplicationPad3d", lambda: nn.ReplicationPad3d((1, 0, 2, 1, 0, 1)), VOLUME),
    of_module("AdaptiveMaxPool3d", lambda: nn.AdaptiveMaxPool3d((2, 3, 1)), VOLUME),
    of_module("Hardshrink", lambda: nn.Hardshrink(), ROW),
    of_module("MultiheadAttention_padded", Attends, SERIES),
    of_module("MultiheadAttention_padded_no_weights", lambda: Attends(need_weights=False), SERIES),
    of_module("SoftMarginLoss", lambda: Fixed(nn.SoftMarginLoss()), ROW, lambda: torch.ones(4, 8)),
    of_module("Conv1d", lambda: nn.Conv1d(6, 4, 3, padding=1), SERIES),
    of_module("Conv1d_same_grouped", lambda: nn.Conv1d(6, 4, 4, padding="same", groups=2), SERIES),
    of_module("Conv1d_reflect", lambda: nn.Conv1d(6, 4, 3, padding=2, padding_mode="reflect"), SERIES),
    of_module("Conv2d_groups", lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE),
    of_module("Conv2d_depthwise", lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4), IMAGE),
    of_module("Conv2d_replicate", lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"), IMAGE),
    of_module("Conv2d_many_groups", lambda: nn.Conv2d(66, 66, 1, groups=33), (2, 66, 3, 3)),
    of_module("Conv3d_groups", lambda: nn.Conv3d(4, 4, 3, groups=2), VOLUME),
    of_module("ConvTranspose1d", lambda: nn.ConvTranspose1d(6, 4, 3, stride=2, output_padding=1), SERIES),
    of_module("ConvTranspose2d_groups", lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, groups=2), IMAGE),
    of_module("ConvTranspose3d_groups", lambda: nn.ConvTranspose3d(4, 4, 2, groups=2), VOLUME),
    of_module("LSTM", lambda: nn.LSTM(8, 5, 2, batch_first=True), SERIES),
    of_module("LSTM_bidirectional_projected", lambda: nn.LSTM(8, 5, 2, bidirectional=True, proj_size=3), SERIES),
    of_module("LSTM_subclassed", lambda: SubclassedLSTM(8, 5, batch_first=True), SERIES),
    of_module("GRU", lambda: nn.GRU(8, 5, 2, bidirectional=True), SERIES),
    of_module("RNN_after_a_projection", lambda: nn.Sequential(nn.Linear(8, 6), nn.RNN(6, 5, batch_first=True)), SERIES),
    of_module("LSTMCell", lambda: nn.LSTMCell(8, 5), ROW),
    of_module("GRUCell", lambda: nn.GRUCell(8, 5), ROW),
    of_module("Upsample_nearest", lambda: nn.Upsample(scale_factor=2), IMAGE),
    of_module("Upsample_bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), IMAGE),
    of_module("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(size=(5, 13)), IMAGE),
    of_module("InstanceNorm1d", lambda: nn.InstanceNorm1d(6), SERIES),
    of_module("InstanceNorm2d_affine", lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    of_module("InstanceNorm2d_tracking", lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    of_module("InstanceNorm3d", lambda: nn.InstanceNorm3d(4), VOLUME),
    of_module("BatchNorm2d_untracked", lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    of_module("ReflectionPad2d", lambda: nn.ReflectionPad2d((2, 1, 0, 3)), IMAGE),
    of_module("ReplicationPad1d", lambda: nn.ReplicationPad1d(2), SERIES),
    of_module("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d((3, 4)), IMAGE),
    of_module("AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(2), SERIES),
    of_module("AvgPool2d_ceil", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    of_module("Unfold", lambda: nn.Unfold(3, padding=1, stride=2), IMAGE),
    of_module("Fold", lambda: nn.Fold((5, 6), 2), (2, 12, 20)),
    of_module("ChannelShuffle", lambda: nn.ChannelShuffle(2), IMAGE),
    of_module("PReLU", lambda: nn.PReLU(4), IMAGE),
    of_module("SELU", lambda: nn.SELU(), ROW),
    of_module("CELU", lambda: nn.CELU(0.7), ROW),
    of_module("Hardsigmoid", lambda: nn.Hardsigmoid(), ROW),
    of_module("Softshrink", lambda: nn.Softshrink(0.3), ROW),
    of_module("SmoothL1Loss", lambda: nn.SmoothL1Loss(beta=0.5), ROW, probabilities(4, 8)),
    of_module("HuberLoss", lambda: nn.HuberLoss(), ROW, probabilities(4, 8)),
    of_module("MultiMarginLoss", lambda: nn.MultiMarginLoss(), ROW, classes(8, 4)),
    of_module("BCELoss", Bce, ROW, probabilities(4, 3)),
    of_module("EmbeddingBag", Bag, ROW, classes(10, 4, 3)),
    of_module("SpectralNorm", lambda: nn.utils.spectral_norm(nn.Linear(8, 3)), ROW),
]  # fmt: skip


def _checkpointed(x: Tensor) -> Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=False) + checkpoint(torch.sin, x, use_reentrant=True)


CALLS = [
    of_calls("conv1d_call", lambda x: F.conv1d(x, x[:3, :, :3]), SERIES),
    of_module("conv1d_subclass", lambda: SubclassedConv(6, 4, 3), SERIES),
    of_calls("interpolate_linear", lambda x: F.interpolate(x, size=13, mode="linear"), SERIES),
    of_calls("interpolate_nearest_odd", lambda x: F.interpolate(x, size=(5, 11)), IMAGE),
    of_calls(
        "interpolate_nearest_exact", lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), IMAGE
    ),
    of_calls("interpolate_bicubic", lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), IMAGE),
    of_calls("interpolate_trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), VOLUME),
    of_calls(
        "interpolate_antialias", lambda x: F.interpolate(x, (3, 5), mode="bilinear", antialias=True), IMAGE
    ),
    of_calls("one_hot", lambda x, i: x * F.one_hot(i, 8), ROW, classes(8, 4)),
    of_calls("flip", lambda x: x.flip(-1) * x, ROW),
    of_calls("flip_both", lambda x: torch.flip(x, (0, 1)) * x, ROW),
    of_calls("fliplr", lambda x: torch.fliplr(x) * x, ROW),
    of_calls("flip_long", lambda x: x.flip(1) * x, (2, 100)),
    of_calls("rot90", lambda x: torch.rot90(x, 1, (2, 3)) * x, IMAGE),
    of_calls("roll", lambda x: torch.roll(x, (1, -3), (2, 3)) * x, IMAGE),
    of_calls("index_select", lambda x, i: x.index_select(1, i), ROW, classes(8, 4)),
    of_calls("index_by_tensor", lambda x, i: x[:, i], ROW, classes(8, 4)),
    of_calls("index_by_list", lambda x: x[..., [0, 5, 2]], ROW),
    of_calls("index_among_others", lambda x, i: x[1:, 0, i], IMAGE, classes(8, 2)),
    of_calls("index_by_a_scalar", lambda x, i: x[:, i[0]], ROW, classes(8, 4)),
    of_calls("set_indexed", set_indexed, ROW, lambda: torch.tensor([3, 1])),
    of_calls("set_masked", set_masked, ROW),
    of_calls("index_fill", lambda x, i: x.index_fill(1, i, 1.0), ROW, classes(8, 4)),
    of_calls("index_copy", lambda x: x.index_copy(0, torch.arange(4, device=x.device), x * 2), ROW),
    of_calls("index_add", lambda x, i: x.index_add(1, i[:2], x[:, :2], alpha=2), ROW, classes(8, 4)),
    of_calls("take", lambda x, i: x.take(i), ROW, classes(32, 4)),
    of_calls("tensor_unfold", lambda x: x.unfold(1, 3, 2), ROW),
    of_calls("pad_reflect", lambda x: F.pad(x, (2, 1), mode="reflect"), SERIES),
    of_calls("pad_replicate", lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"), IMAGE),
    of_calls("max_unpool2d", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), IMAGE),
    of_calls("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 2), VOLUME),
    of_calls("median_dim", lambda x: x.median(1).values, ROW),
    of_calls("median", lambda x: torch.median(x), ROW),
    of_calls("kthvalue", lambda x: x.kthvalue(6, 1)[0], ROW),
    of_calls("quantile", lambda x: x.quantile(0.3, 1), ROW),
    of_calls("cummax", lambda x: x.cummax(1)[0], ROW),
    of_calls("cummin", lambda x: torch.cummin(x, 0)[0], ROW),
    of_calls("logcumsumexp", lambda x: x.logcumsumexp(1), ROW),
    of_calls("sum_falling", lambda x: x.sum((-1, -2)), IMAGE),
    of_calls("amax_falling", lambda x: x.amax((3, 2)), IMAGE),
    of_calls("amin_falling", lambda x: x.amin((3, 2)), IMAGE),
    of_calls("var_falling", lambda x: x.var((-1, -2)), IMAGE),
    of_calls("std_falling", lambda x: torch.std(x, (3, 2), unbiased=False), IMAGE),
    of_calls("logsumexp_falling", lambda x: x.logsumexp((3, 2)), IMAGE),
    of_calls("vector_norm_1", lambda x: torch.linalg.vector_norm(x, 1, dim=1), ROW),
    of_calls("vdot", lambda x: torch.vdot(x[0], x[1]), ROW),
    of_calls("avg_pool1d_ceil", lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), SERIES),
    of_calls("avg_pool3d_ceil", lambda x: F.avg_pool3d(x, 3, 2, ceil_mode=True), VOLUME),
    of_calls(
        "tril_mask",
        lambda x: x[:, :4].masked_fill(torch.ones(4, 4, dtype=torch.bool, device=x.device).tril(-1), 0.5),
        ROW,
    ),
    of_calls("nansum", lambda x: x.nansum(1), ROW),
    of_calls("nanmean", lambda x: x.nanmean(), ROW),
    of_calls("var_mean", lambda x: torch.var_mean(x, 1), ROW),
    of_calls("std_mean", lambda x: torch.std_mean(x, (1, 2), keepdim=True), SERIES),
    of_calls("count_nonzero", lambda x: x * (x > 0).count_nonzero(1).unsqueeze(1), ROW),
    of_calls("bincount", lambda x, i: x * torch.bincount(i, minlength=8), ROW, classes(8, 4)),
    of_calls("searchsorted", lambda x: x * torch.searchsorted(x.detach()[0].sort()[0], x.detach()), ROW),
    of_calls(
        "bucketize", lambda x: x * torch.bucketize(x.detach(), x.detach()[0].sort()[0], right=True), ROW
    ),
    of_calls("diag", lambda x: x[:, :4].diag(), ROW),
    of_calls("diagonal", lambda x: x.diagonal(1, 1, 2), SERIES),
    of_calls("diag_embed", lambda x: x.diag_embed(1), ROW),
    of_calls("trace", lambda x: x[:, :4].trace(), ROW),
    of_calls(
        "triu_mask",
        lambda x: x[:, :4].masked_fill(torch.ones(4, 4, dtype=torch.bool, device=x.device).triu(1), 0.5),
        ROW,
    ),
    of_calls("cross", lambda x: torch.cross(x[:, :3], x[:, 3:6], dim=1), ROW),
    of_calls("linalg_cross", lambda x: torch.linalg.cross(x[:, :3], x[:, 3:6]), ROW),
    of_calls("hardshrink", lambda x: F.hardshrink(x), ROW),
    of_calls("lerp", lambda x: torch.lerp(x, x * x, 0.3), ROW),
    of_calls("nan_to_num", lambda x: x.nan_to_num() * x, ROW),
    of_calls("logaddexp", lambda x: torch.logaddexp(x, x * x), ROW),
    of_calls("fmax", lambda x: torch.fmax(x, x * x), ROW),
    of_calls("fmin", lambda x: x.fmin(x * x), ROW),
    of_calls("pairwise_distance_1", lambda x: F.pairwise_distance(x, x * x, p=1), ROW),
    of_calls("dist", lambda x: torch.dist(x, x * x), ROW),
    of_calls(
        "scatter_reduce",
        lambda x, i: x.scatter_reduce(1, i.unsqueeze(1), x[:, :1], "sum"),
        ROW,
        classes(8, 4),
    ),
    of_calls("hypot", lambda x: torch.hypot(x, x + 1), ROW),
    of_calls("exp2", lambda x: torch.exp2(x), ROW),
    of_calls("asinh", lambda x: torch.asinh(x), ROW),
    of_calls("atanh", lambda x: torch.atanh(x.tanh() * 0.9), ROW),
    of_calls("erfc", lambda x: torch.erfc(x), ROW),
    of_calls("trunc", lambda x: x.trunc() * x, ROW),
    of_calls("frac", lambda x: x.frac(), ROW),
    of_calls("logit", lambda x: torch.logit(x.sigmoid(), 1e-3), ROW),
    of_calls("mv", lambda x: torch.mv(x, x[0]), ROW),
    of_calls("norm_1", lambda x: x.norm(p=1, dim=1), ROW),
    of_calls("norm_inf", lambda x: x.norm(p=float("inf"), dim=1), ROW),
    of_calls("normalize_1", lambda x: F.normalize(x, p=1.0), ROW),
    of_calls("linspace", lambda x: x * torch.linspace(0, 1, 8, device=x.device), ROW),
    of_calls(
        "gaussian_nll_loss", lambda x, t: F.gaussian_nll_loss(x, t, x * x + 0.1), ROW, probabilities(4, 8)
    ),
    of_module("binary_cross_entropy", BceCall, ROW, probabilities(4, 3)),
    of_calls(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        IMAGE,
        lambda: torch.rand(2, 5, 5, 2) * 2.4 - 1.2,
    ),
    of_calls("affine_grid", lambda x: F.affine_grid(x, (2, 3, 4, 5), align_corners=False), (2, 2, 3)),
    of_calls("checkpoint", _checkpointed, ROW),
]

CASES = MODULES + CALLS
