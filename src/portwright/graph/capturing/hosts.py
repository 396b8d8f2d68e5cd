"""Tensors that a step makes on the host, and the model itself, made without allocating its weights.

On an accelerator the weights and the batch are on the device, and `torch.arange(8)` inside of forward is not: it is an
ordinary tensor of the CPU, which may be read and printed, and which may not meet a tensor of the device unless it is
moved there. Under capture the host's tensors are real where they are small, and the device's are fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from portwright.patched import patched

_MARK = "_portwright_on_host"
_MOST_REAL_ELEMENTS = 4096
_MOST_EQUAL_GUESSES = 8


class Hosts:
    """Tells the host's tensors from the device's."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        self.makes = True  # whether a tensor that is made now is the host's
        self._fake_mode = fake_mode
        self._num_guesses = 0
        self._of_device: WeakIdKeyDictionary = WeakIdKeyDictionary()  # real tensors that a constructor made

    def note_device(self, tensor: Tensor) -> None:
        """Notes a constructor's real tensor that an accelerator would have on the device."""
        self._of_device[tensor] = True

    def has(self, tensor: Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return hasattr(tensor, _MARK)
        return tensor not in self._of_device and not isinstance(tensor, nn.Parameter)

    def stays(self, func: Any, given: list[Tensor], names_device: bool) -> bool:
        """Whether an op computes on the host, since all tensors that it reads are there."""
        if func is torch.ops.aten.lift_fresh.default:
            return self.makes
        if not given:
            return self.makes and not names_device
        return all(self.has(tensor) for tensor in given)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Computes on the host."""
        result = self.compute(func, args, kwargs)
        for tensor in tensors_in((result,)):
            if isinstance(tensor, FakeTensor):
                setattr(tensor, _MARK, True)
        return result

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Computes real results where the tensors are real and small, else fake ones."""
        given = tensors_in((*args, *kwargs.values()))
        if not any(isinstance(t, FakeTensor) for t in given):
            is_small = sum(t.numel() for t in given) <= _MOST_REAL_ELEMENTS
            if not given:
                is_small = sum(t.numel() for t in tensors_in((func(*args, **kwargs),))) <= _MOST_REAL_ELEMENTS
            if is_small:
                with _disable_current_modes():
                    return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and getattr(args[0], "constant", None) is None:
            return self._guess(args[0])
        return func(*args, **kwargs)

    def _guess(self, tensor: Tensor) -> Any:
        """A value of a large tensor on the host; it changes now and then, since initializers draw until all values fit."""
        self._num_guesses += 1
        is_other = self._num_guesses // _MOST_EQUAL_GUESSES % 2 == 1
        with _disable_current_modes():
            is_one = is_other == (tensor.dtype is torch.bool)
            return torch.full((), int(is_one), dtype=tensor.dtype).item()

    def to_device(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, FakeTensor):
            return self._fake_mode.from_tensor(tensor)
        if hasattr(tensor, _MARK):
            delattr(tensor, _MARK)
        return tensor


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments or results, nested ones too."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


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
                if parameter is not None and id(parameter) not in converted:
                    with torch.no_grad():
                        changed = fn(parameter)
                    made = (
                        parameter if changed is parameter else nn.Parameter(changed, parameter.requires_grad)
                    )
                    converted[id(parameter)] = (parameter, made)
                if parameter is not None:
                    self._parameters[name] = converted[id(parameter)][1]
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
