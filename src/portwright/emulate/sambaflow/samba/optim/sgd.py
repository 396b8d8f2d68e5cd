"""Stochastic gradient descent on the device."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.sambaflow.samba.optim.base import SambaOptimizer


class SGD(SambaOptimizer):
    """lr, momentum and weight_decay as torch's SGD has them; all three may change from run to run through hyperparam_dict."""

    hyperparameters = ("lr", "momentum", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def make_torch(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.0)
