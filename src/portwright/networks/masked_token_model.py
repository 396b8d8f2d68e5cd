"""The model that run() trains for networks that predict masked tokens: loss, metrics and predictions."""

from __future__ import annotations

from typing import Any

import torch

from portwright.base_model import PyTorchBaseModel
from portwright.losses import token_cross_entropy
from portwright.networks.bert_heads import BertForPreTraining
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric


class MaskedTokenModel(PyTorchBaseModel):
    """A BertForPreTraining with its loss, and how well it guesses masked tokens and, unless `disable_nsp`, pairs.

    A batch has `input_ids`, `masked_lm_positions`, `masked_lm_weights` and `labels`, and may have `attention_mask`, `token_type_ids`,
    `next_sentence_label` and `mlm_loss_scale`.
    """

    model: BertForPreTraining

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = BertForPreTraining(params["model"])
        self.mlm_accuracy = AccuracyMetric(name="eval/mlm_accuracy")
        self.mlm_perplexity = PerplexityMetric(name="eval/mlm_perplexity")
        if self.model.has_nsp:
            self.nsp_accuracy = AccuracyMetric(name="eval/nsp_accuracy")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.model.training:
            return self.model.loss(data)  # never holds all logits
        tokens, sentences = self.score(data)
        labels, weights = data["labels"], data["masked_lm_weights"]
        losses = token_cross_entropy(tokens, labels)
        self.mlm_accuracy(labels=labels, predictions=tokens.argmax(-1), weights=weights)
        self.mlm_perplexity(labels=labels, loss=losses, weights=weights)
        if sentences is not None:
            self.nsp_accuracy(labels=data["next_sentence_label"], predictions=sentences.argmax(-1))
        scaled = self.model.scale_weights(weights.to(losses.dtype), data.get("mlm_loss_scale"))
        return (losses * scaled).sum() + self.model.sentence_loss(sentences, data.get("next_sentence_label"))

    def score(self, data: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.model(
            data["input_ids"],
            data.get("attention_mask"),
            data.get("token_type_ids"),
            data["masked_lm_positions"],
        )

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens, sentences = self.score(data)
        found = {"masked_lm_positions": data["masked_lm_positions"], "masked_lm_tokens": tokens.argmax(-1)}
        return found if sentences is None else {**found, "next_sentence": sentences.softmax(-1)}
