"""BERT that classifies a text or a pair of texts, or gives numbers for it."""

from __future__ import annotations

from typing import Any

import torch

from portwright import PyTorchBaseModel
from portwright.networks.bert_heads import BertForSequenceClassification
from portwright.runtime.metrics import (
    AccuracyMetric,
    FBetaScoreMetric,
    MatthewsCorrelationCoefficientMetric,
)


class BertClassifierModel(PyTorchBaseModel):
    """The network with its loss, and accuracy, F1 and Matthews' coefficient of its classes."""

    model: BertForSequenceClassification

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = BertForSequenceClassification(params["model"])
        count = self.model.num_labels
        self.metrics: list[Any] = []
        if self.model.problem_type == "single_label_classification":
            kind = "binary" if count == 2 else "macro"
            self.metrics = [
                AccuracyMetric(name="eval/accuracy"),
                FBetaScoreMetric(count, average_type=kind, name="eval/f1"),
                MatthewsCorrelationCoefficientMetric(count, name="eval/mcc"),
            ]
        elif self.model.problem_type == "multi_label_classification":
            self.metrics = [
                AccuracyMetric(name="eval/accuracy"),
                FBetaScoreMetric(2, average_type="binary", name="eval/f1"),
            ]
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = self.score(data)
        if not self.model.training:
            for metric in self.metrics:
                metric(labels=data["labels"].int(), predictions=self.decide(scores))
        return self.model.loss(scores, data["labels"])

    def score(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(data["input_ids"], data.get("attention_mask"), data.get("token_type_ids"))

    def decide(self, scores: torch.Tensor) -> torch.Tensor:
        if self.model.problem_type == "single_label_classification":
            return scores.argmax(-1)
        return (scores > 0).int()

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        scores = self.score(data)
        if self.model.problem_type == "regression":
            return {"values": scores}
        is_one = self.model.problem_type == "single_label_classification"
        chances = scores.softmax(-1) if is_one else scores.sigmoid()
        return {"labels": self.decide(scores), "probabilities": chances}
