"""Looking at values where that is possible: never while a step is traced, at no cost on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


def can_read(tensor: Tensor) -> bool:
    """Whether the tensor is plain memory of this process, with nobody tracing."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None
    )
