"""Cross-entropy of the three planes, weighted so that the few cosmic and neutrino pixels count enough."""

from __future__ import annotations

from collections.abc import Sequence
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

    Labels enter as comparisons, and weights as sums of products of them: shapes never depend on data, so that static
    targets can take it. A pixel whose label is no class counts nothing.
    """
    if balance not in get_args(Balance):
        raise UserError(f"unknown loss balance '{balance}'.", suggest(balance, get_args(Balance)))
    is_class = torch.stack([(labels == index).float() for index in range(NUM_CLASSES)], dim=1)
    entropy = -(F.log_softmax(logits.float(), dim=1) * is_class).sum(1)
    if balance == "none":
        return entropy.mean() * NUM_PLANES
    with torch.no_grad():
        weights = _weigh(entropy, is_class, balance)
    losses = [
        (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        for weight, loss in zip(weights.chunk(NUM_PLANES), entropy.chunk(NUM_PLANES), strict=True)
    ]
    return losses[0] + losses[1] + losses[2]


def _weigh(entropy: Tensor, is_class: Tensor, balance: str) -> Tensor:
    # what is predicted well already counts little; exp(-entropy) is the label's probability
    if balance == "focal":
        return (1.0 - torch.exp(-entropy)).square()
    if balance == "light":
        return _weighted_sum(is_class, LIGHT_WEIGHTS)
    planes = is_class.chunk(NUM_PLANES)
    shares = [
        [EVEN_SHARE / (plane[:, index].sum() + 1.0) for index in range(NUM_CLASSES)] for plane in planes
    ]
    return torch.cat([_weighted_sum(plane, share) for plane, share in zip(planes, shares, strict=True)])


def _weighted_sum(is_class: Tensor, weights: Sequence[float | Tensor]) -> Tensor:
    first, second, third = (is_class[:, index] * weight for index, weight in enumerate(weights))
    return first + second + third
