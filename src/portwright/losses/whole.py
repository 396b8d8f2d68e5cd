"""The loss of chunked.py in plain ops over all the logits at once, for compilers that must see each op."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from portwright.losses.tokens import token_cross_entropy


def whole_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    weights: Tensor | None,
    reduction: str,
) -> Tensor:
    """Gives the same value as chunked_cross_entropy."""
    logits = F.linear(hidden, weight, bias)
    losses = token_cross_entropy(logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing)
    if weights is not None:
        losses = losses * weights.to(losses.dtype)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    counted = (targets != ignore_index).to(losses.dtype)
    if weights is not None:
        counted = counted * weights.to(losses.dtype)
    return losses.sum() / counted.sum()
