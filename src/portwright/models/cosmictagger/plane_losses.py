"""Cross-entropy of the three planes, with pixels weighted so that the few that matter are not lost among the many."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from portwright.errors import UserError, suggest

Balance = Literal["none", "light", "even", "focal"]
NUM_PLANES = 3
NUM_CLASSES = 3
LIGHT_WEIGHTS = (1.0, 1.5, 10.0)  # of background, cosmic and neutrino pixels
EVEN_SHARE = 0.3333  # of each class, as the original rounds it


def plane_loss(logits: Tensor, labels: Tensor, balance: str = "focal") -> Tensor:
    """The sum over planes of each plane's weighted mean, from [planes * batch, classes, height, width] and labels of its pixels.

    Weights are products and sums of comparisons: shapes never depend on data, so that static targets can take them.
    """
    if balance not in get_args(Balance):
        raise UserError(f"unknown loss balance '{balance}'.", suggest(balance, get_args(Balance)))
    entropy = F.cross_entropy(logits.float(), labels.long(), reduction="none")
    if balance == "none":
        return entropy.mean() * NUM_PLANES
    with torch.no_grad():
        weights = _weigh(entropy, labels, balance)
    losses = [
        (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        for weight, loss in zip(weights.chunk(NUM_PLANES), entropy.chunk(NUM_PLANES), strict=True)
    ]
    return losses[0] + losses[1] + losses[2]


def _weigh(entropy: Tensor, labels: Tensor, balance: str) -> Tensor:
    if balance == "focal":  # what is predicted well already counts little; exp(-entropy) is the label's probability
        return (1.0 - torch.exp(-entropy)).square()
    is_class = [(labels == index).to(entropy.dtype) for index in range(NUM_CLASSES)]
    if balance == "light":
        return _weighted_sum(is_class, LIGHT_WEIGHTS)
    planes = zip(*(each.chunk(NUM_PLANES) for each in is_class), strict=True)
    return torch.cat([_weighted_sum(plane, [EVEN_SHARE / (each.sum() + 1.0) for each in plane]) for plane in planes])


def _weighted_sum(parts: list[Tensor] | tuple[Tensor, ...], weights: object) -> Tensor:
    first, second, third = (part * weight for part, weight in zip(parts, weights, strict=True))  # type: ignore[call-overload]
    total: Tensor = first + second + third
    return total
