"""Sums of cross entropy and of tokens: what perplexity and bits per byte are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.metrics.base import Metric, Sums
from portwright.runtime.metrics.batches import SUM_DTYPE, as_tensor, spread


class TokenLossMetric(Metric):
    """A metric of the cross entropy per token.

    `loss` is the sum over the tokens of the batch (not their mean), or one loss per label; weights apply to the
    latter and count the tokens of both. Labels of `ignore_index` are no tokens, as in torch's cross_entropy.
    """

    def __init__(self, name: str | None = None, *, ignore_index: int | None = -100) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "tokens": ()}

    def update(self, labels: Any, loss: Any, weights: Any = None) -> None:
        label = as_tensor(self.name, "labels", labels)
        losses = as_tensor(self.name, "loss", loss).to(device=label.device, dtype=SUM_DTYPE)
        weight = spread(self.name, weights, label)
        if self.ignore_index is not None:
            weight = torch.where(label == self.ignore_index, 0.0, weight)
        if losses.dim() > 0 and losses.numel() == label.numel():
            # A loss that does not count may be anything, NaN too.
            losses = torch.where(weight == 0, 0.0, losses.reshape(label.shape) * weight)
        elif losses.numel() != 1:
            raise UserError(
                f"Metric '{self.name}' received a loss of shape {tuple(losses.shape)} for labels of shape "
                f"{tuple(label.shape)}.",
                "Pass the loss summed over the batch's tokens, or one loss per label.",
            )
        self.add(loss=losses.sum(), tokens=weight.sum())

    def nats_per_token(self, sums: Sums) -> float:
        """Mean cross entropy of a token, in nats."""
        tokens = float(sums["tokens"])
        if tokens == 0:
            raise self.no_value("it saw no token that counts")
        return float(sums["loss"]) / tokens
