"""Kernels in Triton, which comes with torch's builds for CUDA: what torch does in several passes over memory, in one or two.

Each has an equal in plain torch ops, which serves wherever these do not: on other devices, without Triton, under a compiler (which fuses by
itself). PORTWRIGHT_KERNELS=0 turns them off.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from torch import Tensor


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None and os.environ.get("PORTWRIGHT_KERNELS", "1") != "0"


def serves(tensor: Tensor) -> bool:
    """Whether a tensor lies where the kernels run."""
    return (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _has_triton()
