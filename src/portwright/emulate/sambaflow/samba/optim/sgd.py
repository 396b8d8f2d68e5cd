"""Stochastic gradient descent on the device."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.sambaflow.samba.optim.base import SambaOptimizer


class SGD(SambaOptimizer):
    """lr, momentum and weight_decay as torch's SGD has them; all three may change from run to run through hyperparam_dict."""

    hyperparameters = ("lr", "momentum", "weight_decay")
    static = ("max_grad_norm",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        argin_region_name: str = "",
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.max_grad_norm, self.argin_region_name = max_grad_norm, argin_region_name

    def make_torch(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.0)
