"""A network that predicts the next token, as run() trains it: its loss, its metrics, its predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portwright.losses import token_cross_entropy
from portwright.networks.gpt import Gpt
from portwright.networks.token_loss import IGNORED_LABEL, label_coefficients
from portwright.runtime.base_model import PyTorchBaseModel
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric


class NextTokenModel(PyTorchBaseModel):
    """A Gpt with its loss, and how well it guesses the tokens of texts that it has not seen.

    A batch has `input_ids`, `labels` and, where not all labels count alike, `attention_mask` with their weights; it
    hides nothing from attention, which only looks back. `document_ids` and `position_ids` belong to packed documents.
    """

    model: Gpt

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = Gpt(params["model"])
        self.accuracy = AccuracyMetric(name="eval/accuracy", ignore_index=IGNORED_LABEL)
        self.perplexity = PerplexityMetric(name="eval/lm_perplexity", ignore_index=IGNORED_LABEL)
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, Tensor]) -> Tensor:
        labels, weights = data["labels"], data.get("attention_mask")
        if self.model.training:
            loss: Tensor = self.model(**self.tokens(data), labels=labels, label_weights=weights)
            return loss
        logits: Tensor = self.model(**self.tokens(data))
        losses = token_cross_entropy(logits, labels, ignore_index=IGNORED_LABEL)
        self.accuracy(labels=labels, predictions=logits.argmax(-1), weights=weights)
        self.perplexity(labels=labels, loss=losses, weights=weights)
        coefficients = label_coefficients(
            labels,
            weights,
            losses.dtype,
            loss_scaling=self.model.loss_scaling,
            loss_weight=self.model.loss_weight,
        )
        return (losses * coefficients).sum()

    def predict(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The likeliest token after each, and how likely it is."""
        logits: Tensor = self.model(**self.tokens(data))
        best = logits.max(dim=-1)
        probabilities = (best.values.float() - logits.float().logsumexp(dim=-1)).exp()
        return {
            "input_ids": data["input_ids"],
            "next_tokens": best.indices,
            "probabilities": probabilities,
        }

    def tokens(self, data: dict[str, Tensor]) -> dict[str, Tensor | None]:
        return {name: data.get(name) for name in ("input_ids", "position_ids", "document_ids")}
