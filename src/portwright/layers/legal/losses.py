"""Losses written out, and taken in single precision where half would be refused or overflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn._reduction import legacy_get_string

from portwright.layers.legal.layers import layer

__all__ = [
    "BCELoss", "EmbeddingBag", "GaussianNLLLoss", "HuberLoss", "MultiMarginLoss", "SmoothL1Loss",
    "SoftMarginLoss", "binary_cross_entropy", "embedding_bag", "gaussian_nll_loss", "huber_loss",
    "multi_margin_loss", "smooth_l1_loss", "soft_margin_loss",
]  # fmt: skip


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """F.binary_cross_entropy, in single precision at least: the SDK refuses it in half."""
    if input.shape != target.shape:
        raise ValueError(
            f"binary_cross_entropy takes equal shapes, not {tuple(input.shape)} and {tuple(target.shape)}"
        )
    probability, label = _widen(input), _widen(target)
    log_yes, log_no = _held_log(probability).detach(), _held_log(1.0 - probability).detach()
    loss = -(label * log_yes + (1.0 - label) * log_no)
    # The added term is zero but has torch's gradient, which stays finite at probabilities of 0 and 1.
    at, goal = probability.detach(), label.detach()
    slope = (at - goal) / (at * (1.0 - at)).clamp(min=1e-12)
    loss = loss + slope * (probability - at)
    if weight is not None:
        loss = loss * weight
    return _reduce(loss, _reduction(size_average, reduce, reduction))


def _held_log(value: Tensor) -> Tensor:
    """The logarithm of a probability, at least -100 as in torch."""
    return torch.log(value).clamp(min=-100.0)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """F.smooth_l1_loss."""
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss takes a beta of at least 0, not {beta}")
    size = (input - target).abs()
    if beta > 0:
        size = torch.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta)
    return _reduce(size, _reduction(size_average, reduce, reduction))


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """F.huber_loss."""
    if delta <= 0:
        raise RuntimeError(f"huber_loss takes a delta above 0, not {delta}")
    size = (input - target).abs()
    loss = torch.where(size <= delta, size * size * 0.5, (size - 0.5 * delta) * delta).to(input.dtype)
    if weight is None:
        return _reduce(loss, reduction)
    loss = loss * weight
    return loss.sum() / weight.sum() if reduction == "mean" else _reduce(loss, reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """F.soft_margin_loss."""
    return _reduce(F.softplus(-target * input), _reduction(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """F.gaussian_nll_loss, without its look at the data for a negative variance."""
    variance = var if isinstance(var, Tensor) else input.new_full(input.shape, var)
    if variance.shape != input.shape:
        if input.shape[:-1] == variance.shape:
            variance = variance.unsqueeze(-1)
        elif input.shape[:-1] != variance.shape[:-1] or variance.shape[-1] != 1:
            raise ValueError(
                f"var has the shape {tuple(variance.shape)}, which does not fit {tuple(input.shape)}"
            )
    held = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (torch.log(held) + (input - target) ** 2 / held)
    if full:
        loss = loss + 0.5 * math.log(2.0 * math.pi)
    return _reduce(loss, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """F.multi_margin_loss."""
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss takes p=1 or p=2, not {p}")
    scores = input.unsqueeze(0) if input.dim() == 1 else input
    labels = target.reshape(-1, 1)
    own = scores.gather(1, labels)
    miss = (margin - own + scores).clamp(min=0.0)
    miss = miss if p == 1 else miss * miss
    if weight is not None:
        miss = miss * weight.unsqueeze(0).expand_as(scores).gather(1, labels)
    other = labels != torch.arange(scores.shape[1], device=input.device)
    loss = torch.where(other, miss, torch.zeros_like(miss)).sum(1) / scores.shape[1]
    return _reduce(loss.squeeze(0) if input.dim() == 1 else loss, _reduction(size_average, reduce, reduction))


def _widen(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    raise ValueError(f"{reduction} is not a valid value for reduction: none, mean or sum")


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction, which torch's two deprecated switches override."""
    if size_average is None and reduce is None:
        return reduction
    return legacy_get_string(size_average, reduce, emit_warning=False)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    """F.embedding_bag for bags of equal size, an input (bags, entries)."""
    if input.dim() != 2:
        raise RuntimeError(
            f"embedding_bag has an equal form for bags of equal size, not {input.dim()} dimensions"
        )
    rows = F.embedding(input, weight, padding_idx)
    kept = torch.ones_like(input) if padding_idx is None else (input != padding_idx).to(input.dtype)
    if mode == "max":
        if padding_idx is not None:
            raise RuntimeError("embedding_bag has no equal form for mode max with a padding_idx")
        return rows.max(1).values
    factor = kept.to(rows.dtype) if per_sample_weights is None else kept.to(rows.dtype) * per_sample_weights
    total = (rows * factor.unsqueeze(-1)).sum(1)
    if mode == "sum":
        return total
    return total / kept.to(rows.dtype).sum(1, keepdim=True).clamp(min=1.0)


class EmbeddingBag(nn.EmbeddingBag):
    """nn.EmbeddingBag for bags of equal size; one that carries offsets is torch's own, and refused as such."""

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        if offsets is not None or input.dim() != 2 or self.max_norm is not None or self.scale_grad_by_freq:
            return super().forward(input, offsets, per_sample_weights)
        if self.mode == "max" and self.padding_idx is not None:
            return super().forward(input, offsets, per_sample_weights)
        return embedding_bag(input, self.weight, self.mode, per_sample_weights, self.padding_idx)


BCELoss = layer(nn.BCELoss, binary_cross_entropy, "weight", "reduction")
SmoothL1Loss = layer(nn.SmoothL1Loss, smooth_l1_loss, "reduction", "beta")
HuberLoss = layer(nn.HuberLoss, huber_loss, "reduction", "delta")
SoftMarginLoss = layer(nn.SoftMarginLoss, soft_margin_loss, "reduction")
GaussianNLLLoss = layer(nn.GaussianNLLLoss, gaussian_nll_loss, "full", "eps", "reduction")
MultiMarginLoss = layer(nn.MultiMarginLoss, multi_margin_loss, "p", "margin", "weight", "reduction")
