"""Makes the user's model without memory, and lends an existing one fake weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# Small tensors that a constructor makes are real: models read them, such as a linspace of dropout rates.
_MOST_REAL_ELEMENTS = 4096


class ConstructionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes small tensors real and large ones fake."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((args, kwargs)))
        if not any(isinstance(t, FakeTensor) for t in given):
            if given:
                is_small = sum(t.numel() for t in given) <= _MOST_REAL_ELEMENTS
            else:
                result = func(*args, **kwargs)
                is_small = sum(t.numel() for t in _tensors(result)) <= _MOST_REAL_ELEMENTS
                if not is_small:
                    return result
            if is_small:
                with _disable_current_modes():
                    return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            tensor = args[0]
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                return torch.zeros((), dtype=tensor.dtype).item()
        return func(*args, **kwargs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


@contextmanager
def lend_fakes(module: nn.Module, fake_mode: FakeTensorMode) -> Iterator[None]:
    """Puts fake tensors in the place of a module's real weights and buffers; afterwards it is as it was."""
    taken: list[tuple[dict[str, Any], str, Tensor]] = []
    modes = [(part, part.training) for part in module.modules()]
    fakes: dict[int, Tensor] = {}
    try:
        for part in module.modules():
            places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for held in places:
                for name, tensor in list(held.items()):
                    if tensor is None or isinstance(tensor, FakeTensor):
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
