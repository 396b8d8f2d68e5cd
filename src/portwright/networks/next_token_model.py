"""The model that run() trains for networks that predict the next token: loss, metrics and predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portwright.base_model import PyTorchBaseModel
from portwright.networks.gpt import Gpt
from portwright.networks.token_loss import IGNORED_LABEL, evaluated_loss
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric


class NextTokenModel(PyTorchBaseModel):
    """A Gpt with its loss, and how well it guesses the tokens of texts that it has not seen.

    A batch has `input_ids` and `labels`. An optional `attention_mask` has the labels' weights; it masks no attention, which
    is causal anyway. Packed documents have `document_ids` and `position_ids`.
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
            return self.model(**self.tokens(data), labels=labels, label_weights=weights)
        logits: Tensor = self.model(**self.tokens(data))
        return evaluated_loss(self.model, logits, labels, weights, self.accuracy, self.perplexity)

    def predict(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The likeliest next token at each position, and its probability."""
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
