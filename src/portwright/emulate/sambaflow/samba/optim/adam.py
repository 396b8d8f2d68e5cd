"""AdamW on the device."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba.optim.base import SambaOptimizer


class AdamW(SambaOptimizer):
    """Defaults are the vendor's, which are not torch's: beta2 is 0.997, weight_decay 0. `fp32_params` keeps bfloat16 weights in float32 too."""

    hyperparameters = ("lr", "weight_decay")
    static = ("betas", "eps", "amsgrad", "max_grad_norm", "fp32_params")

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.997),
        eps: float = 1e-08,
        weight_decay: float = 0,
        amsgrad: bool = False,
        max_grad_norm: float | None = None,
        fp32_params: bool = False,
        argin_region_name: str = "",
    ) -> None:
        if len(tuple(betas)) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise SambaFlowError(f"AdamW: betas={betas!r}.", "Give two numbers from 0 to below 1.")
        self.betas, self.eps, self.amsgrad = [float(beta) for beta in betas], float(eps), bool(amsgrad)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.max_grad_norm, self.argin_region_name = max_grad_norm, argin_region_name
        self.fp32_params = fp32_params

    def make_torch(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        betas = (self.betas[0], self.betas[1])
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=self.eps, amsgrad=self.amsgrad)
