"""The targets that torch's loss functions are given: where a script has no loader they are a part of its batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from portwright.verify.record_steps import Watch

_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss", "hinge_embedding_loss",
)  # fmt: skip


def hook_losses(watch: Watch) -> None:
    for name in _LOSSES:
        setattr(F, name, _watched(watch, getattr(F, name)))


def _watched(watch: Watch, function: Any) -> Any:
    @functools.wraps(function)
    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside of a module it was fed to the module.
        if watch.depth == 0 and isinstance(target, torch.Tensor):
            watch.fed(target)
        return function(input, target, *args, **kwargs)

    return loss
