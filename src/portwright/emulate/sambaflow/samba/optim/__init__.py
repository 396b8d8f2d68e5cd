"""sambaflow.samba.optim: what the device updates weights with; their host part holds settings and state, and never steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch

from portwright.emulate.sambaflow._refusal import SambaFlowError, not_emulated


class SambaOptimizer(torch.optim.Optimizer):
    """Settings to compile with, and the state as `cpu()` or `session.to_cpu` last brought it from the device."""

    hyperparameters: ClassVar[tuple[str, ...]] = ()  # what a run may change through hyperparam_dict
    static: ClassVar[tuple[str, ...]] = ()  # what the program is made of
    max_grad_norm: float | None = None
    argin_region_name: str = ""
    fp32_params: bool = False
    _bring_state: Callable[[], None] | None = None  # set where the optimizer was traced

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        for name in self.hyperparameters:
            value = defaults[name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SambaFlowError(f"{type(self).__name__}: {name}={value!r}.", "Give a number.")
            if not value >= 0:
                raise SambaFlowError(
                    f"{type(self).__name__}: {name}={value}.", "Give a number that is not negative."
                )
        super().__init__(params, defaults)

    def make_torch(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The rule of the update, over tensors of the device."""
        raise NotImplementedError

    def step(self, closure: Any = None) -> NoReturn:
        raise SambaFlowError(
            f"{type(self).__name__}.step() was called on the host: a converted model is updated by the program's opt section.",
            "Remove it; samba.session.run does forward, backward and update, with section_types or all at once.",
        )

    def cpu(self) -> None:
        """Brings the state of the device to the host, where state_dict() finds it."""
        if self._bring_state is not None:
            self._bring_state()


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


Adam, SparseAdamW = not_emulated("samba.optim.Adam"), not_emulated("samba.optim.SparseAdamW")

__all__ = ["SGD", "Adam", "AdamW", "SparseAdamW"]
