"""T5: an encoder and a decoder with relative positions, trained to fill in what was taken out of a text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from portwright import PyTorchBaseModel
from portwright.errors import UnsupportedError
from portwright.generation import GenerationOptions, generate
from portwright.losses import token_cross_entropy
from portwright.networks import T5
from portwright.networks.head_loss import takes_custom_ops
from portwright.networks.seq2seq_loss import seq2seq_loss
from portwright.runtime.metrics import AccuracyMetric, PerplexityMetric

Batch = dict[str, torch.Tensor]


class T5Model(PyTorchBaseModel):
    """The network with the loss of its target tokens, and how many of them it gets right."""

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.options = params["model"]
        self.model = T5(self.options)
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        self.perplexity = PerplexityMetric(name="eval/perplexity")
        self.exact_match = (
            AccuracyMetric(name="eval/exact_match") if self.options["eval_exact_match"] else None
        )
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Batch) -> torch.Tensor:
        # Targets are padded on the right, where no earlier position looks: the decoder needs no mask for that.
        hidden = self.model.hidden(data["input_ids"], data["attention_mask"], data["decoder_input_ids"])
        weight, _ = self.model.head_weight()
        if not self.model.training:
            self.measure(data, F.linear(hidden, weight))
        return seq2seq_loss(
            hidden,
            weight,
            data["labels"],
            data["decoder_attention_mask"],
            label_smoothing=self.options["label_smoothing"] if self.model.training else 0.0,
            loss_scaling=self.options["loss_scaling"],
            loss_weight=self.options["loss_weight"],
        )

    def measure(self, data: Batch, logits: torch.Tensor) -> None:
        labels, weights = data["labels"], data["decoder_attention_mask"]
        self.accuracy(labels=labels, predictions=logits.argmax(-1), weights=weights)
        self.perplexity(labels=labels, loss=token_cross_entropy(logits, labels), weights=weights)
        if self.exact_match is not None:
            if not takes_custom_ops(logits):
                raise UnsupportedError(
                    "model.eval_exact_match generates token by token, which a compiled step cannot do.",
                    "Set model.eval_exact_match: false on this target.",
                )
            made = self.generate(data, labels.shape[1])
            wanted = labels.masked_fill(weights == 0, self.options["pad_token_id"])
            made = F.pad(made, (0, labels.shape[1] - made.shape[1]), value=self.options["pad_token_id"])
            self.exact_match(
                labels=torch.ones_like(labels[:, 0]), predictions=(made == wanted).all(1).to(labels.dtype)
            )

    def predict(self, data: Batch) -> Batch:
        made = self.generate(data, self.options["max_generated_tokens"])
        # One width for all batches.
        made = F.pad(
            made,
            (0, self.options["max_generated_tokens"] - made.shape[1]),
            value=self.options["pad_token_id"],
        )
        return {"input_ids": data["input_ids"], "generated_ids": made}

    def generate(self, data: Batch, max_new_tokens: int) -> torch.Tensor:
        """The likeliest tokens, one after the other, up to the end token; without the start token."""
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            eos_token_id=self.options["eos_token_id"],
            pad_token_id=self.options["pad_token_id"],
        )
        return generate(self.model, data["input_ids"], data["attention_mask"], options).new_tokens
