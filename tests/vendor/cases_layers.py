"""Hand-picked layers and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vendor.case import B, Case, bools, floats, function, ints, layer


def _activations() -> Iterator[Case]:
    for kind in [
        "ReLU",
        "ReLU6",
        "ELU",
        "SELU",
        "CELU",
        "GELU",
        "SiLU",
        "Mish",
        "Sigmoid",
        "Tanh",
        "Softplus",
        "Softsign",
        "LeakyReLU",
        "Hardtanh",
        "Hardsigmoid",
        "Hardswish",
        "LogSigmoid",
        "Softshrink",
        "Hardshrink",
        "Tanhshrink",
        "PReLU",
        "RReLU",
        "GLU",
    ]:
        yield layer(f"nn.{kind}", getattr(nn, kind))
    yield layer("nn.GELU(tanh)", lambda: nn.GELU(approximate="tanh"))
    yield layer("nn.Threshold", lambda: nn.Threshold(0.5, 0.0))
    yield layer("nn.ReLU(inplace)", lambda: nn.ReLU(inplace=True))
    yield layer("nn.Softmax", lambda: nn.Softmax(-1))
    yield layer("nn.Softmin", lambda: nn.Softmin(-1))
    yield layer("nn.LogSoftmax", lambda: nn.LogSoftmax(-1))
    yield layer("nn.Softmax2d", nn.Softmax2d, floats(3, 5, 5))
    yield function("F.gumbel_softmax", lambda x: F.gumbel_softmax(x))


def _losses() -> Iterator[Case]:
    yield function("F.mse_loss", F.mse_loss, floats(8), floats(8))
    yield function("F.l1_loss", F.l1_loss, floats(8), floats(8))
    yield function("F.smooth_l1_loss", F.smooth_l1_loss, floats(8), floats(8))
    yield function("F.huber_loss", F.huber_loss, floats(8), floats(8))
    yield function("F.cross_entropy", F.cross_entropy, floats(8), ints())
    yield function(
        "F.cross_entropy(smooth)", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), floats(8), ints()
    )
    yield function("F.cross_entropy(soft)", lambda x, y: F.cross_entropy(x, y), floats(8), floats(8))
    yield function("F.cross_entropy(image)", F.cross_entropy, floats(5, 6, 6), ints(6, 6))
    yield function(
        "F.cross_entropy(ignore)", lambda x, y: F.cross_entropy(x, y, ignore_index=0), floats(8), ints()
    )
    yield function(
        "F.cross_entropy(tokens)",
        lambda x, y: F.cross_entropy(x.view(-1, 9), y.view(-1)),
        floats(6, 9),
        ints(6),
    )
    yield function("F.nll_loss", lambda x, y: F.nll_loss(F.log_softmax(x, -1), y), floats(8), ints())
    yield function(
        "F.binary_cross_entropy", lambda x, y: F.binary_cross_entropy(x, y.detach()), floats(8), floats(8)
    )
    yield Case("F.binary_cross_entropy(half)", _HalfBce, (floats(8), floats(1)))
    yield function(
        "F.binary_cross_entropy_with_logits",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach()),
        floats(8),
        floats(8),
    )
    yield function(
        "F.kl_div", lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1)), floats(8), floats(8)
    )
    yield function(
        "F.cosine_embedding_loss", F.cosine_embedding_loss, floats(8), floats(8), ints(below=2) * 2 - 1
    )
    yield function("F.triplet_margin_loss", F.triplet_margin_loss, floats(8), floats(8), floats(8))
    yield function("F.margin_ranking_loss", F.margin_ranking_loss, floats(), floats(), ints(below=2) * 2 - 1)
    yield function("F.hinge_embedding_loss", F.hinge_embedding_loss, floats(8), ints(8, below=2) * 2 - 1)
    yield function("F.multi_margin_loss", F.multi_margin_loss, floats(8), ints())
    yield function("F.soft_margin_loss", F.soft_margin_loss, floats(8), ints(8, below=2) * 2 - 1)
    yield function("F.poisson_nll_loss", F.poisson_nll_loss, floats(8), floats(8))
    yield function("F.gaussian_nll_loss", F.gaussian_nll_loss, floats(8), floats(8), floats(8))
    yield function(
        "F.multilabel_soft_margin_loss", F.multilabel_soft_margin_loss, floats(8), ints(8, below=2)
    )
    yield function(
        "F.ctc_loss",
        lambda x, y: F.ctc_loss(F.log_softmax(x, -1).transpose(0, 1), y, (9,) * B, (3,) * B),
        floats(9, 6),
        ints(3, below=5) + 1,
    )
    yield function("F.cosine_similarity", F.cosine_similarity, floats(8), floats(8))
    yield function("F.pairwise_distance", F.pairwise_distance, floats(8), floats(8))


class _HalfBce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(self.linear(x)), y)


def _norms() -> Iterator[Case]:
    yield layer("nn.LayerNorm", lambda: nn.LayerNorm(8), floats(6, 8))
    yield layer("nn.LayerNorm(two dims)", lambda: nn.LayerNorm((6, 8)), floats(6, 8))
    yield layer("nn.LayerNorm(plain)", lambda: nn.LayerNorm(8, elementwise_affine=False), floats(6, 8))
    yield layer("nn.RMSNorm", lambda: nn.RMSNorm(8), floats(6, 8))
    yield layer("nn.GroupNorm", lambda: nn.GroupNorm(2, 8), floats(8, 5, 5))
    yield layer("nn.GroupNorm(tokens)", lambda: nn.GroupNorm(2, 8), floats(8, 5))
    yield layer("nn.BatchNorm1d", lambda: nn.BatchNorm1d(8))
    yield layer("nn.BatchNorm1d(tokens)", lambda: nn.BatchNorm1d(8), floats(8, 5))
    yield layer("nn.BatchNorm2d", lambda: nn.BatchNorm2d(3), floats(3, 5, 5))
    yield layer("nn.BatchNorm2d(eval)", lambda: nn.BatchNorm2d(3), floats(3, 5, 5), train=False)
    yield layer(
        "nn.BatchNorm2d(no stats)", lambda: nn.BatchNorm2d(3, track_running_stats=False), floats(3, 5, 5)
    )
    yield layer("nn.BatchNorm3d", lambda: nn.BatchNorm3d(3), floats(3, 4, 4, 4))
    yield layer("nn.InstanceNorm1d", lambda: nn.InstanceNorm1d(8), floats(8, 5))
    yield layer("nn.InstanceNorm2d", lambda: nn.InstanceNorm2d(3), floats(3, 5, 5))
    yield layer("nn.InstanceNorm2d(affine)", lambda: nn.InstanceNorm2d(3, affine=True), floats(3, 5, 5))
    yield layer("nn.LocalResponseNorm", lambda: nn.LocalResponseNorm(2), floats(3, 5, 5))
    yield function("F.normalize", F.normalize)
    yield layer("weight_norm", lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)))
    yield layer("spectral_norm", lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)))


def _convolutions() -> Iterator[Case]:
    yield layer("nn.Conv1d", lambda: nn.Conv1d(3, 6, 3), floats(3, 9))
    yield layer("nn.Conv1d(forward)", lambda: nn.Conv1d(3, 6, 3), floats(3, 9), train=False)
    yield layer("nn.Conv2d", lambda: nn.Conv2d(3, 6, 3), floats(3, 8, 8))
    yield layer("nn.Conv2d(stride)", lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1), floats(3, 8, 8))
    yield layer("nn.Conv2d(dilation)", lambda: nn.Conv2d(3, 6, 3, dilation=2), floats(3, 8, 8))
    yield layer("nn.Conv2d(no bias)", lambda: nn.Conv2d(3, 6, 1, bias=False), floats(3, 8, 8))
    yield layer("nn.Conv2d(groups)", lambda: nn.Conv2d(4, 8, 3, groups=2), floats(4, 8, 8))
    yield layer("nn.Conv2d(depthwise)", lambda: nn.Conv2d(4, 4, 3, groups=4), floats(4, 8, 8))
    yield layer("nn.Conv2d(same)", lambda: nn.Conv2d(3, 6, 3, padding="same"), floats(3, 8, 8))
    yield layer(
        "nn.Conv2d(reflect)", lambda: nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), floats(3, 8, 8)
    )
    yield layer("nn.Conv3d", lambda: nn.Conv3d(3, 6, 3), floats(3, 5, 5, 5))
    yield layer("nn.ConvTranspose1d", lambda: nn.ConvTranspose1d(3, 6, 3), floats(3, 9))
    yield layer("nn.ConvTranspose2d", lambda: nn.ConvTranspose2d(3, 6, 3), floats(3, 8, 8))
    yield layer("nn.ConvTranspose2d(stride)", lambda: nn.ConvTranspose2d(3, 6, 2, stride=2), floats(3, 8, 8))
    yield layer(
        "nn.ConvTranspose2d(output padding)",
        lambda: nn.ConvTranspose2d(3, 6, 3, stride=2, output_padding=1),
        floats(3, 8, 8),
    )
    yield layer("nn.ConvTranspose3d", lambda: nn.ConvTranspose3d(3, 6, 3), floats(3, 5, 5, 5))
    yield layer("nn.Unfold", lambda: nn.Unfold(3), floats(3, 8, 8))
    yield layer("nn.Fold", lambda: nn.Fold((4, 4), 2), floats(8, 9))


def _pools() -> Iterator[Case]:
    yield layer("nn.MaxPool1d", lambda: nn.MaxPool1d(2), floats(3, 8))
    yield layer("nn.MaxPool2d", lambda: nn.MaxPool2d(2), floats(3, 8, 8))
    yield layer("nn.MaxPool2d(stride)", lambda: nn.MaxPool2d(3, 2, 1), floats(3, 8, 8))
    yield layer("nn.MaxPool2d(ceil)", lambda: nn.MaxPool2d(3, 2, ceil_mode=True), floats(3, 8, 8))
    yield layer("nn.MaxPool2d(indices)", lambda: nn.MaxPool2d(2, return_indices=True), floats(3, 8, 8))
    yield layer("nn.MaxPool3d", lambda: nn.MaxPool3d(2), floats(3, 4, 4, 4))
    yield layer("nn.AvgPool1d", lambda: nn.AvgPool1d(2), floats(3, 8))
    yield layer("nn.AvgPool2d", lambda: nn.AvgPool2d(2), floats(3, 8, 8))
    yield layer("nn.AvgPool2d(padding)", lambda: nn.AvgPool2d(3, 2, 1), floats(3, 8, 8))
    yield layer(
        "nn.AvgPool2d(exclude pad)", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), floats(3, 8, 8)
    )
    yield layer("nn.AvgPool2d(ceil)", lambda: nn.AvgPool2d(3, 2, ceil_mode=True), floats(3, 8, 8))
    yield layer("nn.AvgPool2d(divisor)", lambda: nn.AvgPool2d(2, divisor_override=3), floats(3, 8, 8))
    yield layer("nn.AvgPool3d", lambda: nn.AvgPool3d(2), floats(3, 4, 4, 4))
    yield layer("nn.AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(1), floats(3, 8))
    yield layer("nn.AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d(1), floats(3, 8, 8))
    yield layer("nn.AdaptiveAvgPool2d(3)", lambda: nn.AdaptiveAvgPool2d(3), floats(3, 8, 8))
    yield layer("nn.AdaptiveAvgPool3d", lambda: nn.AdaptiveAvgPool3d(1), floats(3, 4, 4, 4))
    yield layer("nn.AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(1), floats(3, 8))
    yield layer("nn.AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d(1), floats(3, 8, 8))
    yield layer("nn.LPPool2d", lambda: nn.LPPool2d(2, 2), floats(3, 8, 8))
    yield layer("nn.FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, output_size=4), floats(3, 8, 8))


def _layers() -> Iterator[Case]:
    yield layer("nn.Linear", lambda: nn.Linear(8, 3))
    yield layer("nn.Linear(no bias)", lambda: nn.Linear(8, 3, bias=False), floats(6, 8))
    yield layer("nn.Bilinear", lambda: nn.Bilinear(8, 5, 3), floats(8), floats(5))
    yield layer("nn.Embedding", lambda: nn.Embedding(9, 8), ints(6))
    yield layer("nn.Embedding(padding)", lambda: nn.Embedding(9, 8, padding_idx=0), ints(6))
    yield layer("nn.Embedding(max_norm)", lambda: nn.Embedding(9, 8, max_norm=1.0), ints(6))
    yield layer("nn.EmbeddingBag", lambda: nn.EmbeddingBag(9, 8), ints(6))
    yield layer("nn.Dropout", nn.Dropout)
    yield layer("nn.Dropout(eval)", nn.Dropout, train=False)
    yield layer("nn.Dropout2d", nn.Dropout2d, floats(3, 8, 8))
    yield layer("nn.AlphaDropout", nn.AlphaDropout)
    yield layer("nn.Flatten", nn.Flatten, floats(3, 8))
    yield layer("nn.PixelShuffle", lambda: nn.PixelShuffle(2), floats(8, 3, 3))
    yield layer("nn.PixelUnshuffle", lambda: nn.PixelUnshuffle(2), floats(2, 4, 4))
    yield layer("nn.ChannelShuffle", lambda: nn.ChannelShuffle(2), floats(8, 3, 3))
    yield layer("nn.ZeroPad2d", lambda: nn.ZeroPad2d(1), floats(3, 5, 5))
    yield layer("nn.ConstantPad1d", lambda: nn.ConstantPad1d(1, 0.5), floats(3, 5))
    yield layer("nn.ReflectionPad1d", lambda: nn.ReflectionPad1d(1), floats(3, 5))
    yield layer("nn.ReflectionPad2d", lambda: nn.ReflectionPad2d(1), floats(3, 5, 5))
    yield layer("nn.ReplicationPad2d", lambda: nn.ReplicationPad2d(1), floats(3, 5, 5))
    yield layer("nn.CircularPad2d", lambda: nn.CircularPad2d(1), floats(3, 5, 5))
    yield layer("nn.Upsample(nearest)", lambda: nn.Upsample(scale_factor=2), floats(3, 5, 5))
    yield layer(
        "nn.Upsample(bilinear)", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), floats(3, 5, 5)
    )
    yield function(
        "F.interpolate(linear)", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), floats(3, 5)
    )
    yield function(
        "F.interpolate(bicubic)", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), floats(3, 5, 5)
    )
    yield function(
        "F.interpolate(area)", lambda x: F.interpolate(x, size=(3, 3), mode="area"), floats(3, 6, 6)
    )
    yield function(
        "F.grid_sample",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        floats(3, 5, 5),
        floats(5, 5, 2),
    )
    yield function(
        "F.affine_grid", lambda t: F.affine_grid(t, [B, 3, 5, 5], align_corners=False), floats(2, 3)
    )
    yield layer("nn.LSTM", lambda: nn.LSTM(8, 6, batch_first=True), floats(5, 8))
    yield layer(
        "nn.LSTM(two layers)", lambda: nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), floats(5, 8)
    )
    yield layer("nn.GRU", lambda: nn.GRU(8, 6, batch_first=True), floats(5, 8))
    yield layer("nn.RNN", lambda: nn.RNN(8, 6, batch_first=True), floats(5, 8))
    yield layer("nn.LSTMCell", lambda: nn.LSTMCell(8, 6))
    yield layer("nn.GRUCell", lambda: nn.GRUCell(8, 6))
    yield layer("nn.RNNCell", lambda: nn.RNNCell(8, 6))


def _attention() -> Iterator[Case]:
    qkv = (floats(2, 6, 8), floats(2, 6, 8), floats(2, 6, 8))
    sdpa = F.scaled_dot_product_attention
    yield function("sdpa", sdpa, *qkv)
    yield function("sdpa(causal)", lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv)
    yield function("sdpa(dropout)", lambda q, k, v: sdpa(q, k, v, dropout_p=0.1), *qkv)
    yield function("sdpa(bool mask)", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *qkv, bools(1, 6, 6))
    yield function(
        "sdpa(float mask)", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m.detach()), *qkv, floats(1, 6, 6)
    )
    yield layer("nn.MultiheadAttention", lambda: _SelfAttention(need_weights=True), floats(6, 8))
    yield layer("nn.MultiheadAttention(no weights)", lambda: _SelfAttention(need_weights=False), floats(6, 8))
    yield layer("nn.MultiheadAttention(padding)", lambda: _SelfAttention(True), floats(6, 8), bools(6))
    yield layer("nn.MultiheadAttention(eval)", lambda: _SelfAttention(False), floats(6, 8), train=False)
    encoder = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True}
    yield layer("nn.TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(**encoder), floats(6, 8))
    yield layer(
        "nn.TransformerEncoderLayer(pre-norm)",
        lambda: nn.TransformerEncoderLayer(**encoder, norm_first=True),
        floats(6, 8),
    )
    yield layer(
        "nn.TransformerEncoderLayer(eval)",
        lambda: nn.TransformerEncoderLayer(**encoder),
        floats(6, 8),
        train=False,
    )
    yield layer(
        "nn.TransformerDecoderLayer",
        lambda: nn.TransformerDecoderLayer(**encoder),
        floats(6, 8),
        floats(5, 8),
    )
    yield layer(
        "nn.TransformerEncoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**encoder), 2, enable_nested_tensor=False),
        floats(6, 8),
    )
    yield layer(
        "nn.Transformer",
        lambda: nn.Transformer(8, 2, 1, 1, 12, batch_first=True),
        floats(6, 8),
        floats(5, 8),
    )


class _SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, ignored: Tensor | None = None) -> Any:
        result, weights = self.attention(x, x, x, key_padding_mask=ignored, need_weights=self.need_weights)
        return result if weights is None else (result, weights)


LAYER_FAMILIES: tuple[Callable[[], Iterator[Case]], ...] = (
    _activations,
    _losses,
    _norms,
    _convolutions,
    _pools,
    _layers,
    _attention,
)
