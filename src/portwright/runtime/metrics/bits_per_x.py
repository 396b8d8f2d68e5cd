"""Bits that a language model needs per byte, character or word of text."""

from __future__ import annotations

import math

from portwright.errors import UserError, suggest
from portwright.runtime.metrics.base import Sums
from portwright.runtime.metrics.token_loss import TokenLossMetric

# GPT-2 tokens per UTF-8 byte, from table 7 of "The Pile" (arXiv 2101.00027).
TOKENS_PER_BYTE = {"pile": 0.29335, "openwebtext2": 0.2434}

BITS_PER_TYPES = ("per_byte", "per_character", "per_word")


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
