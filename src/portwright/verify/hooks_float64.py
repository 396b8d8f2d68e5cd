"""Lets a script compute in float64 where it means float32: roundings become so small that only faults are left to see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SINGLE, _DOUBLE = torch.float32, torch.float64


class _InFloat64(TorchFunctionMode):
    """Wherever float32 is named, float64 is meant; what comes from outside as float32 is widened where it comes in."""

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
    """A view or an in-place change of a float32 tensor has to stay what it is."""
    return any(isinstance(arg, Tensor) and arg.dtype is _SINGLE for arg in args)


def compute_in_float64() -> None:
    """For the whole process: the default dtype, what is named float32, and what arrays of numpy become."""
    torch.set_default_dtype(_DOUBLE)
    torch.set_default_dtype = lambda d: None
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[assignment, misc, unused-ignore]
    from_numpy = torch.from_numpy

    def widened(array: Any) -> Tensor:
        tensor = from_numpy(array)
        return tensor.double() if tensor.dtype is _SINGLE else tensor

    torch.from_numpy = widened  # type: ignore[assignment]
    _InFloat64().__enter__()  # type: ignore[no-untyped-call]
