"""Perplexity of a language model."""

from __future__ import annotations

import math

from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.token_loss import TokenLossMetric


class PerplexityMetric(TokenLossMetric):
    """e to the cross entropy per token; infinite when that exceeds what a float holds."""

    def value(self, sums: Sums) -> float:
        try:
            return math.exp(self.nats_per_token(sums))
        except OverflowError:
            return math.inf
