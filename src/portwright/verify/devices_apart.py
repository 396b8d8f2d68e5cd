"""Runs scripts that name a GPU without one: on the CPU, and when replayed on the target's device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TO = (Tensor.to, Tensor.type)


def on_the_cpu(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Changes CUDA to CPU in a call's arguments; the caller replaces Tensor.cuda."""
    device = kwargs.get("device")
    if _is_cuda(device):
        kwargs = {**kwargs, "device": "cpu"}
    if func in _TO:
        args = tuple("cpu" if _is_cuda(arg) else arg for arg in args)
    return args, kwargs


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class NoAccelerator:
    """Stands in for torch.accelerator on versions of torch without it, and answers that there is none."""

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 0

    @staticmethod
    def current_accelerator(check_available: bool = False) -> None:
        return None


class OnDevice(TorchFunctionMode):
    """Inside a step: replaces CPU and GPU, as the script names them, by the device of the step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_host(kwargs.get("device")):
            kwargs = {**kwargs, "device": self._device}
        if func in _TO and len(args) > 1 and self._is_host(args[1]):
            args = (args[0], self._device, *args[2:])
        if func is Tensor.cuda:
            return args[0].to(self._device)
        return func(*args, **kwargs)

    @staticmethod
    def _is_host(value: Any) -> bool:
        is_cpu = (
            value.type == "cpu"
            if isinstance(value, torch.device)
            else isinstance(value, str) and value == "cpu"
        )
        return is_cpu or _is_cuda(value)
