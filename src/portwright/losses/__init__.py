"""Losses of language models, and a cross-entropy that never holds all logits at once."""

from portwright.losses.chunked import chunked_cross_entropy
from portwright.losses.language import (
    BertPretrainModelLoss,
    GPTLMHeadModelLoss,
    T5ForConditionalGenerationLoss,
    smooth_loss,
)
from portwright.losses.tokens import token_cross_entropy

__all__ = [
    "BertPretrainModelLoss",
    "GPTLMHeadModelLoss",
    "T5ForConditionalGenerationLoss",
    "chunked_cross_entropy",
    "smooth_loss",
    "token_cross_entropy",
]
