"""Whether an op of our own can be computed, or a front end traces the step for another target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

_CHUNKING_DEVICES = ("cpu", "cuda", "hpu")


def takes_custom_ops(tensor: Tensor) -> bool:
    """Whether the tensor is computed here and now, or compiled by torch."""
    if tensor.device.type not in _CHUNKING_DEVICES:
        return False
    return torch.compiler.is_compiling() or _get_current_dispatch_mode() is None
