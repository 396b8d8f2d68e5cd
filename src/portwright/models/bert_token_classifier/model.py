"""BERT that gives each token a class, such as the entity that it belongs to."""

from __future__ import annotations

from typing import Any

import torch

from portwright import PyTorchBaseModel
from portwright.networks.bert_heads import BertForTokenClassification
from portwright.runtime.metrics import AccuracyMetric, FBetaScoreMetric

IGNORED = -100


class BertTokenClassifierModel(PyTorchBaseModel):
    """The network with its loss, its accuracy, and F1 over all classes but the first, which means none."""

    model: BertForTokenClassification

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = BertForTokenClassification(params["model"])
        count = params["model"]["num_classes"]
        self.accuracy = AccuracyMetric(name="eval/accuracy", ignore_index=IGNORED)
        self.f1 = FBetaScoreMetric(count, ignore_labels=[0], name="eval/f1", ignore_index=IGNORED)
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        scores, labels = self.score(data), data["labels"]
        if not self.model.training:
            for metric in (self.accuracy, self.f1):
                metric(labels=labels, predictions=scores.argmax(-1))
        return self.model.loss(scores, labels)

    def score(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(data["input_ids"], data.get("attention_mask"), data.get("token_type_ids"))

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"input_ids": data["input_ids"], "classes": self.score(data).argmax(-1)}
