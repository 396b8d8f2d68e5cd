"""The model that run() trains for networks with an encoder and a decoder: loss, metrics and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portwright.base_model import PyTorchBaseModel
from portwright.errors import UnsupportedError
from portwright.layers.plain_ops import is_eager
from portwright.networks.encoder_decoder import EncoderDecoder
from portwright.networks.token_loss import IGNORED_LABEL, evaluated_loss
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric

Batch = dict[str, Tensor]


class TargetTokenModel(PyTorchBaseModel):
    """An encoder-decoder with the loss of its target tokens, and how many of them it gets right.

    A batch has `input_ids`, `attention_mask`, `decoder_input_ids`, `decoder_attention_mask` and `labels`. Targets are
    padded on the right, where causal attention does not look, so that their mask only says which labels count.
    """

    model: EncoderDecoder
    network: Callable[[Mapping[str, Any]], EncoderDecoder]

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.options = params["model"]
        self.model = type(self).network(self.options)
        self.accuracy = AccuracyMetric(name="eval/accuracy", ignore_index=IGNORED_LABEL)
        self.perplexity = PerplexityMetric(name="eval/perplexity", ignore_index=IGNORED_LABEL)
        self.exact_match: AccuracyMetric | None = None
        if self.options["eval_exact_match"]:
            self.exact_match = AccuracyMetric(name="eval/exact_match")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Batch) -> Tensor:
        ids = (data["input_ids"], data["attention_mask"], data["decoder_input_ids"])
        labels, weights = data["labels"], data["decoder_attention_mask"]
        if self.model.training:
            return self.model(*ids, labels=labels, label_weights=weights)
        logits: Tensor = self.model(*ids)
        if self.exact_match is not None:
            self.exact_match(labels=torch.ones_like(labels[:, 0]), predictions=self.matches(data))
        return evaluated_loss(self.model, logits, labels, weights, self.accuracy, self.perplexity)

    def matches(self, data: Batch) -> Tensor:
        """1 for each sample whose target is generated token for token, else 0."""
        labels = data["labels"]
        if not is_eager(labels):
            raise UnsupportedError(
                "model.eval_exact_match generates token by token, which a compiled step cannot do.",
                "Set model.eval_exact_match: false on this target.",
            )
        wanted = labels.masked_fill(data["decoder_attention_mask"] == 0, self.options["pad_token_id"])
        return (self.generate(data, labels.shape[1]) == wanted).all(dim=1).to(labels.dtype)

    def predict(self, data: Batch) -> Batch:
        """The network's answers, padded after their end token."""
        made = self.generate(data, self.options["max_generated_tokens"])
        return {"input_ids": data["input_ids"], "generated_ids": made}

    def generate(self, data: Batch, num_tokens: int) -> Tensor:
        """Greedy generation of `num_tokens` tokens, padding included, without the start token."""
        from portwright.generation import GenerationOptions, generate

        options = GenerationOptions(
            max_new_tokens=num_tokens,
            eos_token_id=self.options["eos_token_id"],
            pad_token_id=self.options["pad_token_id"],
        )
        made = generate(self.model, data["input_ids"], data["attention_mask"], options).new_tokens
        return F.pad(made, (0, num_tokens - made.shape[1]), value=self.options["pad_token_id"])
