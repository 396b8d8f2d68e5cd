"""Makes the user's model without allocating its weights, and puts fake weights into an existing model for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from portwright.graph.capturing.hosts import Hosts
from portwright.graph.capturing.trace import tensors_in
from portwright.patched import patched


class ConstructionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes large tensors fake and small ones real, since models read those, such as a linspace of dropout rates."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hosts = hosts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._hosts.compute(func, args, kwargs or {})
        for tensor in tensors_in((result,)):
            if not isinstance(tensor, FakeTensor):
                self._hosts.note_device(tensor)
        return result


@contextmanager
def lend_fakes(module: nn.Module, fake_mode: FakeTensorMode) -> Iterator[None]:
    """Puts fake tensors in place of a module's real weights and buffers inside the block."""
    taken: list[tuple[dict[str, Any], str, Tensor]] = []
    modes = [(part, part.training) for part in module.modules()]
    fakes: dict[int, Tensor] = {}
    try:
        for part in module.modules():
            places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for held in places:
                for name, tensor in list(held.items()):
                    if tensor is None or isinstance(tensor, FakeTensor) or is_lazy(tensor):
                        continue
                    if id(tensor) not in fakes:
                        fakes[id(tensor)] = fake_mode.from_tensor(tensor)
                    taken.append((held, name, tensor))
                    held[name] = fakes[id(tensor)]
        yield
    finally:
        for place, name, tensor in taken:
            place[name] = tensor
        for part, training in modes:
            part.training = training


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
    with patched(nn.Module, "_apply", apply):
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
