"""Whether a vendor's compiler has to see each op, so that nothing may be left to a kernel of torch's or of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

# Where torch itself runs whatever kernel there is; elsewhere a compiler gets ops one by one.
_TORCH_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu")
_num_asking = 0  # a plain number, which torch.compile can read


@contextmanager
def plain_ops() -> Iterator[None]:
    """Within, losses and masks are made of torch's simplest ops, as they would be on a vendor's device."""
    global _num_asking
    _num_asking += 1
    try:
        yield
    finally:
        _num_asking -= 1


def needs_plain_ops(tensor: Tensor) -> bool:
    return tensor.device.type not in _TORCH_DEVICES or _num_asking > 0


def is_eager(tensor: Tensor) -> bool:
    """Whether torch's own kernels run at once: nothing is captured, compiled or lowered, and values may be looked at."""
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    return type(tensor) is Tensor and tensor.device.type in ("cpu", "cuda")
