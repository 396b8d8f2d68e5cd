"""Which pixels of a neutrino detector's images are cosmic, which neutrino and which background: UResNet, its loss and its metrics."""

from __future__ import annotations

from typing import Any

import torch
from network_options import NetworkOptions
from plane_losses import plane_loss
from plane_metrics import NAMES, PlaneMetric
from uresnet import UResNet

from portwright import PyTorchBaseModel


class CosmicTaggerModel(PyTorchBaseModel):
    """Takes {"image": [batch, 3 planes, height, width], "label": the same shape}."""

    def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
        options = params["model"]
        self.model = UResNet(NetworkOptions(**options))
        self.balance = options["loss_balance_scheme"]
        self.metrics = [PlaneMetric(name) for name in NAMES]
        super().__init__(params=params, model=self.model, device=device)

    def __call__(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.model(data["image"])
        labels = data["label"].transpose(0, 1).flatten(0, 1)  # plane by plane, as the logits are
        if not self.model.training:
            predictions = logits.argmax(1)
            for metric in self.metrics:
                metric(labels=labels, predictions=predictions)
        return plane_loss(logits, labels, self.balance)

    def predict(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The class of each pixel, [batch, 3 planes, height, width]."""
        classes = self.model(data["image"]).argmax(1)
        return {"label": torch.stack(classes.chunk(3), dim=1)}
