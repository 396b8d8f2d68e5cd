"""BERT that finds the answer to a question in a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from portwright import PyTorchBaseModel
from portwright.networks.bert_heads import BertForQuestionAnswering
from portwright.runtime.metrics import AccuracyMetric, Metric


class SpanOverlapMetric(Metric):
    """F1 of the tokens that are in both spans, the mean over windows; a span is its first and last place."""

    def sum_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"scores": (), "windows": ()}

    def update(
        self, starts: torch.Tensor, ends: torch.Tensor, found_starts: torch.Tensor, found_ends: torch.Tensor
    ) -> None:
        shared = torch.minimum(ends, found_ends) - torch.maximum(starts, found_starts) + 1
        sizes = (ends - starts + 1) + (found_ends - found_starts + 1)
        scores = 2.0 * shared.clamp(min=0) / sizes
        self.add(scores=scores.sum(), windows=torch.ones_like(scores).sum())

    def value(self, sums: Mapping[str, torch.Tensor]) -> float:
        if float(sums["windows"]) == 0:
            raise self.no_value("it saw no window")
        return float(sums["scores"] / sums["windows"])


class BertQaModel(PyTorchBaseModel):
    """The network with its loss; exact match and F1 are of token places, a window of a text at a time."""

    model: BertForQuestionAnswering

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = BertForQuestionAnswering(params["model"])
        self.max_answer_length: int = params["model"]["max_answer_length"]
        self.exact_match = AccuracyMetric(name="eval/exact_match")
        self.f1 = SpanOverlapMetric(name="eval/f1")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = self.score(data)
        starts, ends = data["start_positions"], data["end_positions"]
        if not self.model.training:
            found_starts, found_ends = self.find_spans(*scores, data.get("attention_mask"))
            is_exact = (found_starts == starts) & (found_ends == ends)
            self.exact_match(labels=torch.ones_like(starts), predictions=is_exact.int())
            self.f1(starts, ends, found_starts, found_ends)
        return self.model.loss(scores, starts, ends)

    def score(self, data: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model(data["input_ids"], data.get("attention_mask"), data.get("token_type_ids"))

    def find_spans(
        self, start: torch.Tensor, end: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best spans that end no earlier than they start and are not too long; [CLS] alone is no answer."""
        places = torch.arange(start.shape[1], device=start.device)
        size = places[None, :] - places[:, None]
        allowed = ((size >= 0) & (size < self.max_answer_length))[None]
        if mask is not None:
            allowed = allowed & (mask != 0)[:, None, :]
        pairs = (start[:, :, None] + end[:, None, :]).float()
        best = torch.where(allowed, pairs, torch.finfo(torch.float32).min).flatten(1).argmax(-1)
        return best // start.shape[1], best % start.shape[1]

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        starts, ends = self.find_spans(*self.score(data), data.get("attention_mask"))
        return {"input_ids": data["input_ids"], "start": starts, "end": ends}
