"""A script that was written for float32 computes in float64, so that what is left of a difference is no rounding."""

from __future__ import annotations

import functools
from typing import Any

import safetensors.torch  # noqa: F401 - its table of dtypes has to be made before float32 is another name
import torch
from torch import nn

from portwright.runtime.batches import map_tensors

_SINGLE, _DOUBLE = torch.float32, torch.float64


def hook_float64() -> None:
    """Lets every way to float32 that a script may name lead to float64; half precision stays what it is."""
    torch.set_default_dtype(_DOUBLE)
    torch.set_default_dtype = lambda d: None
    names: Any = torch
    names.float32 = names.float = _DOUBLE
    names.FloatTensor = torch.DoubleTensor
    names.Tensor.float = torch.Tensor.double
    nn.Module.float = nn.Module.double  # type: ignore[method-assign]
    for name in ("from_numpy", "tensor", "as_tensor", "asarray", "load"):
        setattr(torch, name, _widened(getattr(torch, name)))
    enter = torch.autocast.__init__

    @functools.wraps(enter)
    def without_autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        enter(self, device_type, enabled=False)

    torch.autocast.__init__ = without_autocast  # type: ignore[method-assign]
    scale = torch.amp.GradScaler.__init__

    @functools.wraps(scale)
    def without_scaling(self: Any, *args: Any, **kwargs: Any) -> None:
        scale(self, enabled=False)

    torch.amp.GradScaler.__init__ = without_scaling  # type: ignore[method-assign]


def widen(tree: Any) -> Any:
    """The same tree with float64 wherever it has float32."""
    return map_tensors(tree, _widen)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not _SINGLE:
        return tensor
    wide = tensor.detach().to(_DOUBLE)
    return wide.requires_grad_(tensor.requires_grad)


def _widened(function: Any) -> Any:
    @functools.wraps(function)
    def wide(*args: Any, **kwargs: Any) -> Any:
        return widen(function(*args, **kwargs))

    return wide
