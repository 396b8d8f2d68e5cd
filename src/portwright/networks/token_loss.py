"""The loss of tokens together with the output layer, divided as in the model zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError, suggest
from portwright.losses import chunked_cross_entropy, token_cross_entropy
from portwright.losses.tokens import wide_type

IGNORED_LABEL = -100
_SCALINGS = ("num_tokens", "batch_size")


def label_coefficients(
    labels: Tensor, weights: Tensor | None, dtype: torch.dtype, *, loss_scaling: str, loss_weight: float
) -> Tensor:
    """The factors of the labels' losses, whose weighted sum is the training loss.

    `num_tokens` divides by the sum of the weights of labels that count (the loss of none is 0), `batch_size` by the
    number of sequences; both are multiplied by `loss_weight`.
    """
    if loss_scaling not in _SCALINGS:
        raise UserError(f"loss_scaling is {loss_scaling!r}.", suggest(str(loss_scaling).lower(), _SCALINGS))
    if weights is not None and weights.shape != labels.shape:
        raise UserError(
            f"label_weights have the shape {tuple(weights.shape)} and labels {tuple(labels.shape)}.",
            "Give one for each label.",
        )
    counted = (labels != IGNORED_LABEL).to(dtype)
    if weights is not None:
        counted = counted * weights.to(dtype)
    if loss_scaling == "batch_size":
        return counted * (loss_weight / labels.shape[0])
    total = counted.sum()
    return counted * (loss_weight / torch.where(total == 0, torch.ones_like(total), total))


def evaluated_loss(
    network: Any,
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    accuracy: Callable[..., object],
    perplexity: Callable[..., object],
) -> Tensor:
    """The loss of logits, scaled as in training; updates both metrics too."""
    losses = token_cross_entropy(logits, labels, ignore_index=IGNORED_LABEL)
    accuracy(labels=labels, predictions=logits.argmax(-1), weights=weights)
    perplexity(labels=labels, loss=losses, weights=weights)
    coefficients = label_coefficients(
        labels, weights, losses.dtype, loss_scaling=network.loss_scaling, loss_weight=network.loss_weight
    )
    return (losses * coefficients).sum()


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    label_weights: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    loss_scaling: str = "num_tokens",
    loss_weight: float = 1.0,
) -> Tensor:
    """The loss of labels [..., t] by an output layer on hidden states [..., t, d], never holding all logits."""
    coefficients = label_coefficients(
        labels,
        label_weights,
        wide_type(hidden.dtype),
        loss_scaling=loss_scaling,
        loss_weight=loss_weight,
    )
    return chunked_cross_entropy(
        hidden,
        weight,
        labels,
        bias,
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        weights=coefficients,
        reduction="sum",
    )
