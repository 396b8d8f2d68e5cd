"""Tells whether a vendor's compiler must see each op, so that fused kernels of torch and ours must not be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

# On these torch runs any kernel; elsewhere a compiler gets single ops.
_TORCH_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu")
_num_entered = 0  # a plain number, which torch.compile can read


@contextmanager
def plain_ops() -> Iterator[None]:
    """Within, losses and masks are made of torch's simplest ops, as they would be on a vendor's device."""
    global _num_entered
    _num_entered += 1
    try:
        yield
    finally:
        _num_entered -= 1


def needs_plain_ops(tensor: Tensor) -> bool:
    return tensor.device.type not in _TORCH_DEVICES or _num_entered > 0


def is_eager(tensor: Tensor) -> bool:
    """Whether torch's own kernels run at once: nothing is captured, compiled or lowered, and values may be looked at."""
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    return type(tensor) is Tensor and tensor.device.type in ("cpu", "cuda")
