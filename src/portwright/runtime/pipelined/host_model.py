"""Making a model in host memory, though its code is told of a device: that may be too small for the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def staying_on_host(device: torch.device) -> Iterator[None]:
    """Modules are not moved to the device meanwhile; conversions of their type go through."""
    if device.type == "cpu":
        yield
        return
    move, to_gpu = nn.Module.to, nn.Module.cuda

    def convert(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        dtype = torch._C._nn._parse_to(*args, **kwargs)[1]
        return module if dtype is None else move(module, dtype)

    nn.Module.to = convert  # type: ignore[method-assign, assignment]
    nn.Module.cuda = lambda module, _device=None: module  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.to, nn.Module.cuda = move, to_gpu  # type: ignore[method-assign]
