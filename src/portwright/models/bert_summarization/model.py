"""BERT that chooses the sentences of a summary (BertSum)."""

from __future__ import annotations

from typing import Any

import torch

from portwright import PyTorchBaseModel
from portwright.networks.bert_heads import BertForSummarization
from portwright.runtime.metrics import AccuracyMetric, FBetaScoreMetric, RougeScoreMetric


class BertSummarizationModel(PyTorchBaseModel):
    """The network with its loss; accuracy and F1 are of sentences, ROUGE of the tokens of the chosen ones."""

    model: BertForSummarization

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        options = params["model"]
        self.model = BertForSummarization(options)
        self.pad_id: int = options["pad_token_id"]
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        self.f1 = FBetaScoreMetric(2, average_type="binary", name="eval/f1")
        self.rouge = (
            RougeScoreMetric(2, name="eval", ignore_ids=[self.pad_id]) if options["compute_rouge"] else None
        )
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = self.score(data)
        labels, weights = data["labels"], data["cls_weights"]
        if not self.model.training:
            chosen = (scores > 0).int()
            self.accuracy(labels=labels, predictions=chosen, weights=weights)
            self.f1(labels=labels, predictions=chosen, weights=weights)
            if self.rouge is not None:
                self.rouge(labels=self.keep(data, labels), predictions=self.keep(data, chosen))
        return self.model.loss(scores, labels, weights)

    def score(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(
            data["input_ids"], data["cls_indices"], data.get("attention_mask"), data.get("token_type_ids")
        )

    def keep(self, data: dict[str, torch.Tensor], chosen: torch.Tensor) -> torch.Tensor:
        """The tokens of chosen sentences; all others, and the [CLS] of each, become padding."""
        ids, weights = data["input_ids"], data["cls_weights"] != 0
        places = torch.arange(ids.shape[1], device=ids.device)
        # a sentence that is none starts nowhere
        starts = torch.where(weights, data["cls_indices"], ids.shape[1])
        begun = (starts[:, :, None] <= places).sum(1)  # sentences begun up to each place
        picked = torch.cat([torch.zeros_like(chosen[:, :1]), chosen * weights], 1).gather(1, begun)
        is_start = (starts[:, :, None] == places).any(1)
        return torch.where((picked != 0) & ~is_start, ids, self.pad_id)

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        chances = self.score(data).sigmoid()
        return {"cls_indices": data["cls_indices"], "probabilities": chances * data["cls_weights"]}
