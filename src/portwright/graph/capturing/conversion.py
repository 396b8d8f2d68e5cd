"""`module.to(...)` on a model whose weights are fake.

Torch swaps a fake parameter for its converted copy, and refuses where anything holds a weak reference to it, which its own fake
mode does. Here the module simply gets a new parameter, tied ones the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def converting_fakes() -> Iterator[None]:
    """Lets models convert themselves while they are made."""
    original: Any = nn.Module._apply
    converted: dict[
        int, tuple[nn.Parameter, nn.Parameter]
    ] = {}  # the old one is kept, so that its id stays its own

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if not any(isinstance(p, FakeTensor) for p in self.parameters(recurse)):
            return original(self, fn, recurse)
        is_outermost = not active
        active.append(self)
        try:
            for child in self.children() if recurse else ():
                child._apply(fn)
            for name, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[name] = _convert(parameter, fn, converted)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = fn(buffer)
        finally:
            active.pop()
            if is_outermost:
                converted.clear()
        return self

    active: list[nn.Module] = []
    with mock.patch.object(nn.Module, "_apply", apply):
        yield


def _convert(
    parameter: nn.Parameter,
    fn: Callable[[Any], Any],
    converted: dict[int, tuple[nn.Parameter, nn.Parameter]],
) -> nn.Parameter:
    known = converted.get(id(parameter))
    if known is None:
        with torch.no_grad():
            changed = fn(parameter)
        made = parameter if changed is parameter else nn.Parameter(changed, parameter.requires_grad)
        known = converted[id(parameter)] = (parameter, made)
    return known[1]
