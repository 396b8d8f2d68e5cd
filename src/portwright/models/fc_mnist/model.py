"""A fully connected network on handwritten digits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from portwright import PyTorchBaseModel
from portwright.runtime.metrics import AccuracyMetric

ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "linear": nn.Identity,
}


class MLP(nn.Module):
    """Linear layers with an activation and dropout between them."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        sizes = [params["input_size"], *params["hidden_sizes"]]
        layers: list[nn.Module] = []
        for size, next_size in pairwise(sizes):
            layers += [
                nn.Linear(size, next_size),
                ACTIVATIONS[params["activation_fn"]](),
                nn.Dropout(params["dropout"]),
            ]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], params["num_classes"]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images.flatten(1))
        return logits


class MNISTModel(PyTorchBaseModel):
    """The network with its loss and its accuracy."""

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        self.model = MLP(params["model"])
        self.loss_fn = nn.CrossEntropyLoss()
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: Any) -> torch.Tensor:
        images, labels = data
        logits = self.model(images)
        if not self.model.training:
            self.accuracy(labels=labels, predictions=logits.argmax(-1))
        loss: torch.Tensor = self.loss_fn(logits, labels)
        return loss

    def predict(self, data: Any) -> dict[str, torch.Tensor]:
        logits = self.model(data[0])
        return {"digit": logits.argmax(-1), "probabilities": logits.softmax(-1)}
