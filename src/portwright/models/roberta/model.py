"""RoBERTa: BERT's encoder with masked tokens alone, and positions that count from padding's."""

from __future__ import annotations

from typing import Any

import torch

from portwright import PyTorchBaseModel
from portwright.losses import token_cross_entropy
from portwright.networks.bert_heads import BertForPreTraining
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric


class RobertaModel(PyTorchBaseModel):
    """The network with its loss, and how well it guesses masked tokens."""

    model: BertForPreTraining

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = BertForPreTraining(params["model"])
        self.mlm_accuracy = AccuracyMetric(name="eval/mlm_accuracy")
        self.mlm_perplexity = PerplexityMetric(name="eval/mlm_perplexity")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.model.training:
            return self.model.loss(data)  # without whole logits
        tokens = self.score(data)
        labels, weights = data["labels"], data["masked_lm_weights"]
        losses = token_cross_entropy(tokens, labels)
        self.mlm_accuracy(labels=labels, predictions=tokens.argmax(-1), weights=weights)
        self.mlm_perplexity(labels=labels, loss=losses, weights=weights)
        scaled = self.model.scale_weights(weights.to(losses.dtype), data.get("mlm_loss_scale"))
        return (losses * scaled).sum()

    def score(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens: torch.Tensor = self.model(
            data["input_ids"],
            data.get("attention_mask"),
            masked_lm_positions=data["masked_lm_positions"],
        )[0]
        return tokens

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens = self.score(data).argmax(-1)
        return {"masked_lm_positions": data["masked_lm_positions"], "masked_lm_tokens": tokens}
