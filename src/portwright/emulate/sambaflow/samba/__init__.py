"""sambaflow.samba: tensors with names, the conversion of a model, and the session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow import _ledger, _state
from portwright.emulate.sambaflow._model import convert
from portwright.emulate.sambaflow._refusal import SambaFlowError, not_emulated
from portwright.emulate.sambaflow.samba import directives, optim, sambatensor, utils
from portwright.emulate.sambaflow.samba import nn as nn_
from portwright.emulate.sambaflow.samba.nn.parameter import SambaParameter
from portwright.emulate.sambaflow.samba.sambatensor import (
    SambaTensor,
    from_named_dict,
    from_torch_tensor,
    to_torch,
)
from portwright.emulate.sambaflow.samba.session import SambaSession, session

__all__ = [
    "SambaParameter",
    "SambaSession",
    "SambaTensor",
    "addmm",
    "directives",
    "from_named_dict",
    "from_torch",
    "from_torch_",
    "from_torch_model_",
    "from_torch_tensor",
    "groupby",
    "is_internal",
    "ones",
    "optim",
    "patched_torch",
    "rand",
    "randint",
    "randn",
    "randn_like",
    "sambatensor",
    "session",
    "to_torch",
    "triu_fill",
    "utils",
    "zeros",
]


def from_torch_model_(model: nn.Module, parent_module_prefix: str | None = None) -> None:
    """Converts a model in place: its parameters become SambaParameters, and the host stops training it."""
    convert(model, parent_module_prefix)


def from_torch_(model: nn.Module) -> None:
    """The older name of from_torch_model_."""
    convert(model)


def from_torch(
    torch_tensor: Tensor, name: str | None = None, batch_dim: int | None = None, **options: Any
) -> SambaTensor:
    """The older name of from_torch_tensor."""
    if isinstance(torch_tensor, nn.Module):
        raise SambaFlowError("from_torch got a model.", "Use samba.from_torch_model_(model).")
    return from_torch_tensor(torch_tensor, name=name, batch_dim=batch_dim, **options)


def _size(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list | torch.Size) else size


def randn(*size: Any, name: str | None = None, batch_dim: int | None = None, **options: Any) -> SambaTensor:
    return from_torch_tensor(torch.randn(_size(size), **options), name, batch_dim)


def rand(*size: Any, name: str | None = None, batch_dim: int | None = None, **options: Any) -> SambaTensor:
    return from_torch_tensor(torch.rand(_size(size), **options), name, batch_dim)


def zeros(*size: Any, name: str | None = None, batch_dim: int | None = None, **options: Any) -> SambaTensor:
    return from_torch_tensor(torch.zeros(_size(size), **options), name, batch_dim)


def ones(*size: Any, name: str | None = None, batch_dim: int | None = None, **options: Any) -> SambaTensor:
    return from_torch_tensor(torch.ones(_size(size), **options), name, batch_dim)


def randint(
    *limits: Any, name: str | None = None, batch_dim: int | None = None, **options: Any
) -> SambaTensor:
    """randint(high, size) or randint(low, high, size), as torch's."""
    return from_torch_tensor(torch.randint(*limits, **options), name, batch_dim)


def randn_like(tensor: Tensor, name: str | None = None, batch_dim: int | None = None) -> SambaTensor:
    return from_torch_tensor(torch.randn_like(to_torch(tensor).detach()), name, batch_dim)


def addmm(
    bias: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
    is_transposed: bool = False,
) -> Tensor:
    """torch.addmm with any number of leading dimensions; `is_transposed` takes mat2 as its transpose."""
    if beta != 1 or alpha != 1 or out is not None:
        raise SambaFlowError(
            f"samba.addmm got beta={beta}, alpha={alpha}, out={'a tensor' if out is not None else None}.",
            "Leave them out: no public example sets them.",
        )
    return bias + mat1 @ (mat2.transpose(-1, -2) if is_transposed else mat2)


@contextmanager
def patched_torch() -> Iterator[None]:
    """Accepted: SambaTensors are torch's here, so that nothing has to be patched."""
    yield


def is_internal() -> bool:
    return False


triu_fill = not_emulated(
    "samba.triu_fill", "no public document says what it fills.", "Use a mask and masked_fill."
)
groupby = not_emulated("samba.groupby", "it belongs to parallel patterns, which are not emulated.")


def _start_again() -> None:
    """A process with nothing compiled and nothing parsed, for tests."""
    session.__init__()  # type: ignore[misc]
    _ledger.forget_all()
    _state.command = None


class _Samba(ModuleType):
    """Keeps the session's object under its name, where Python would put the module of that name each time it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "session" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


globals()["nn"] = nn_
sys.modules[__name__].__class__ = _Samba
