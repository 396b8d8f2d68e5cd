"""What SGD and AdamW share: the host's part of an optimizer whose steps are a section of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch

from portwright.emulate.sambaflow._refusal import SambaFlowError


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
