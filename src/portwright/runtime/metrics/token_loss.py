"""Sums of cross entropy and of tokens, and what is computed from them: perplexity, and bits per byte, character or word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from portwright.errors import UserError, suggest
from portwright.runtime.metrics.base import Metric, Sums
from portwright.runtime.metrics.batches import SUM_DTYPE, as_tensor, spread

# GPT-2 tokens per UTF-8 byte, from table 7 of "The Pile" (arXiv 2101.00027).
TOKENS_PER_BYTE = {"pile": 0.29335, "openwebtext2": 0.2434}

BITS_PER_TYPES = ("per_byte", "per_character", "per_word")


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


class PerplexityMetric(TokenLossMetric):
    """e to the cross entropy per token; infinite when that exceeds what a float holds."""

    def value(self, sums: Sums) -> float:
        try:
            return math.exp(self.nats_per_token(sums))
        except OverflowError:
            return math.inf


class BitsPerXMetric(TokenLossMetric):
    """Cross entropy in bits per byte, character or word.

    `tokens_per_x` says how many tokens one byte (character, word) is on average. Left out, it is the known
    number of `dataset` for bytes, and 1 for characters and words: tokens are then taken to be just those.
    """

    def __init__(
        self,
        bits_per_type: str = "per_byte",
        dataset: str = "pile",
        name: str | None = None,
        *,
        tokens_per_x: float | None = None,
        ignore_index: int | None = -100,
    ) -> None:
        if bits_per_type not in BITS_PER_TYPES:
            raise UserError(
                f"bits_per_type must be known, received {bits_per_type!r}.",
                suggest(str(bits_per_type), BITS_PER_TYPES),
            )
        if tokens_per_x is None and bits_per_type == "per_byte" and dataset not in TOKENS_PER_BYTE:
            raise UserError(
                f"Tokens per byte of data set {dataset!r} are not known.",
                f"Pass tokens_per_x with your tokenizer's number. {suggest(str(dataset), TOKENS_PER_BYTE)}",
            )
        if tokens_per_x is not None and not (math.isfinite(tokens_per_x) and tokens_per_x > 0):
            raise UserError(
                f"tokens_per_x must be above 0, received {tokens_per_x}.",
                "Divide the number of tokens of your text by its number of bytes (characters, words).",
            )
        super().__init__(name, ignore_index=ignore_index)
        self.tokens_per_x = tokens_per_x or (TOKENS_PER_BYTE[dataset] if bits_per_type == "per_byte" else 1.0)

    def value(self, sums: Sums) -> float:
        return self.nats_per_token(sums) / math.log(2) * self.tokens_per_x
