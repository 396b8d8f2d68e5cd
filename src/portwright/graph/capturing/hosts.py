"""Tensors that a step makes on the host.

On an accelerator the weights and the batch are on the device, and `torch.arange(8)` inside of forward is not: it is an
ordinary tensor of the CPU, which may be read and printed, and which may not meet a tensor of the device unless it is
moved there. Under capture the host's tensors are real where they are small, and the device's are fake.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

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
        for tensor in _tensors(result):
            if isinstance(tensor, FakeTensor):
                setattr(tensor, _MARK, True)
        return result

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Computes real results where the tensors are real and small, else fake ones."""
        given = _tensors((args, kwargs))
        if not any(isinstance(t, FakeTensor) for t in given):
            is_small = sum(t.numel() for t in given) <= _MOST_REAL_ELEMENTS
            if not given:
                is_small = sum(t.numel() for t in _tensors(func(*args, **kwargs))) <= _MOST_REAL_ELEMENTS
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


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    return []
