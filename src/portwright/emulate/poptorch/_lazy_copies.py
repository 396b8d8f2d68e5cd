"""Weights of the host that fetch the device's when somebody looks at them: PopTorch's implicit copies.

A tensor that an executor trains becomes one of a class of its own, through which every function of torch has to go.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from portwright.emulate.poptorch import _impl

if TYPE_CHECKING:
    from portwright.emulate.poptorch._poplar_executor import PoplarExecutor


def watch(tensors: Iterable[Tensor], executor: PoplarExecutor) -> None:
    """From here on, whoever looks at one of these tensors has the executor bring them up to date first."""
    classes: dict[type[Tensor], type[Tensor]] = {}
    for tensor in tensors:
        base = type(tensor)
        if base not in classes:
            classes[base] = _watched(base, weakref.ref(executor))
        tensor.__class__ = classes[base]


def release(tensors: Iterable[Tensor]) -> None:
    """Makes them plain tensors again."""
    for tensor in tensors:
        _impl.unwrapIfWrapped(tensor)


def unseen() -> AbstractContextManager[Any]:
    """Inside, looks at the tensors do not count: they are the emulator's own."""
    return torch._C.DisableTorchFunctionSubclass()


def _plain(tensor: Tensor) -> Tensor:
    """What copies and files are made of: they are no one's but the host's."""
    value = tensor.detach()
    mine = (
        torch.nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else value
    )
    mine.__dict__.update(tensor.__dict__)
    return mine


def _watched(base: type[Tensor], parent: weakref.ref[PoplarExecutor]) -> type[Tensor]:
    class Watched(base):  # type: ignore[misc, valid-type]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            executor = parent()
            if executor is not None:
                executor.copyWeightsToHostIfNeeded()
            with unseen():
                return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memory: dict[int, Any]) -> Any:
            if id(self) not in memory:
                memory[id(self)] = copy.deepcopy(_plain(self), memory)
            return memory[id(self)]

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _plain(self).__reduce_ex__(protocol)

    kind = "Parameter" if issubclass(base, torch.nn.Parameter) else "Buffer"
    Watched.__name__ = Watched.__qualname__ = f"Poptorch{kind}"
    Watched.__module__ = base.__module__
    _impl.registerWrapperType(Watched)
    return Watched
