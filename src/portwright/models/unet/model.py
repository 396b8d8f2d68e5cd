"""Which pixels of an image belong to which class: U-Net, its loss and its metrics."""

from __future__ import annotations

from typing import Any

import torch
from segmentation_loss import segmentation_loss
from torch import Tensor

from portwright import PyTorchBaseModel
from portwright.networks import UNet
from portwright.networks.image_memory import fit
from portwright.runtime.metrics import AccuracyMetric, DiceCoefficientMetric, MeanIOUMetric


class UNetModel(PyTorchBaseModel):
    """Takes {"image": [batch, channels, height, width], "mask": class numbers [batch, height, width]}."""

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        options = params["model"]
        self.loss, self.ignore_index = options["loss"], options["ignore_index"]
        num_classes = options["num_classes"]
        self.model = UNet({**options, "num_outputs": 1 if self.loss.startswith("bce") else num_classes})
        # else each convolution would turn its weights over
        if device is not None and torch.device(device).type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.accuracy = AccuracyMetric(name="eval/accuracy")
        self.overlaps = [
            DiceCoefficientMetric(num_classes, "eval/dice", ignore_index=self.ignore_index),
            MeanIOUMetric(num_classes, "eval/mean_iou", ignore_index=self.ignore_index),
        ]
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, Tensor]) -> Tensor:
        logits = self.model(data["image"])
        labels = middle(data["mask"], logits)
        if not self.model.training:
            self.measure(labels, classes_of(logits))
        return segmentation_loss(logits, labels, self.loss, self.ignore_index)

    def measure(self, labels: Tensor, classes: Tensor) -> None:
        for metric in self.overlaps:
            metric(labels=labels, predictions=classes)
        counted = None if self.ignore_index is None else (labels != self.ignore_index).float()
        self.accuracy(labels=labels, predictions=classes, weights=counted)

    def predict(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The class of each pixel, and the probability of each class (of the second alone where there are two)."""
        logits = self.model(data["image"]).float()
        probabilities = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
        return {"classes": classes_of(logits), "probabilities": probabilities}


def middle(labels: Tensor, logits: Tensor) -> Tensor:
    """The labels of the pixels that have logits: all, or those in the middle where convolutions do not pad."""
    if labels.shape[1:] == logits.shape[2:]:
        return labels
    return fit(labels.unsqueeze(1), logits.shape[2], logits.shape[3]).squeeze(1)


def classes_of(logits: Tensor) -> Tensor:
    return (logits[:, 0] > 0).int() if logits.shape[1] == 1 else logits.argmax(1).int()
