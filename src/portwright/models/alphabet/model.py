"""The next letter of the alphabet, by one of three models; model.variant in params.yaml chooses."""

from __future__ import annotations

from typing import Any

import cb_transformer
import literal_transformer
import pytorch_transformer
import torch

from portwright import PyTorchBaseModel
from portwright.losses import GPTLMHeadModelLoss
from portwright.runtime.metrics import AccuracyMetric

VARIANTS = {
    "pytorch": pytorch_transformer.TransformerModel,
    "layers": cb_transformer.TransformerModel,
    "literal": literal_transformer.TransformerModel,
}


class AlphabetModel(PyTorchBaseModel):
    """A transformer with the model zoo's language-model loss, and the share of letters that it gets right."""

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        options = params["model"]
        vocab_size = options["vocab_size"]
        self.model = VARIANTS[options["variant"]](
            vocab_size,
            options["embedding_size"],
            options["num_heads"],
            options["hidden_size"],
            options["num_hidden_layers"],
            options["dropout"],
            options["nonlinearity"],
            options["seq_len"],
        )
        self.loss_fn = GPTLMHeadModelLoss(vocab_size, 1 / vocab_size)
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        scores = self.score(data)
        labels, weights = data["target_ids"], data["attention_mask"]
        if not self.model.training:
            self.accuracy(labels=labels, predictions=scores.argmax(-1), weights=weights)
        return self.loss_fn(scores, labels, weights)

    def score(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        letters = data["input_ids"]
        mask = pytorch_transformer.generate_square_subsequent_mask(letters.shape[1], letters.device)
        return self.model(letters, mask)

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"input_ids": data["input_ids"], "next_letter": self.score(data).argmax(-1)}
