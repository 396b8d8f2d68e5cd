"""Runs a script written for float32 in float64, so that a remaining difference is not rounding."""

from __future__ import annotations

from typing import Any

import safetensors.torch  # noqa: F401 - its table of dtypes has to be made before float32 is another name
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from portwright.patched import in_place_of
from portwright.watching.trees import map_tensors

_SINGLE, _DOUBLE = torch.float32, torch.float64


def compute_in_float64() -> None:
    """Switches the whole process to float64: every way to name float32 means it; half precision stays as it is."""
    torch.set_default_dtype(_DOUBLE)
    torch.set_default_dtype = lambda d: None
    names: Any = torch
    names.float32 = names.float = _DOUBLE
    names.FloatTensor = torch.DoubleTensor
    names.Tensor.float = torch.Tensor.double
    nn.Module.float = nn.Module.double  # type: ignore[method-assign]
    for name in ("from_numpy", "tensor", "as_tensor", "asarray", "load"):
        in_place_of(torch, name)(lambda function, *args, **kwargs: widen(function(*args, **kwargs)))

    @in_place_of(torch.autocast, "__init__")
    def without_autocast(enter: Any, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        enter(self, device_type, enabled=False)

    @in_place_of(torch.amp.GradScaler, "__init__")
    def without_scaling(scale: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        scale(self, enabled=False)

    _InFloat64().__enter__()  # type: ignore[no-untyped-call]


def widen(tree: Any) -> Any:
    """Converts float32 tensors of a tree to float64."""
    return map_tensors(tree, _widen)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not _SINGLE:
        return tensor
    wide = tensor.detach().to(_DOUBLE)
    return wide.requires_grad_(tensor.requires_grad)


class _InFloat64(TorchFunctionMode):
    """Makes float32 mean float64 in calls of torch, and widens float32 results."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: _widened_name(value) for key, value in (kwargs or {}).items()}
        args = tuple(_widened_name(value) for value in args)
        if func is Tensor.float:
            func = Tensor.double
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.dtype is _SINGLE and not _takes_single(args):
            return result.double()
        return result


def _widened_name(value: Any) -> Any:
    if value is _SINGLE:
        return _DOUBLE
    if isinstance(value, str) and value in ("torch.FloatTensor", "torch.float32"):
        return value.replace("FloatTensor", "DoubleTensor").replace("float32", "float64")
    return value


def _takes_single(args: tuple[Any, ...]) -> bool:
    """Whether an argument is a float32 tensor, whose views and in-place changes must keep their dtype."""
    return any(isinstance(arg, Tensor) and arg.dtype is _SINGLE for arg in args)
