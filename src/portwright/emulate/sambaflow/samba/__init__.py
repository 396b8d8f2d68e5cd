"""sambaflow.samba: tensors with names, the conversion of a model, and the session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow._model import from_torch_model_
from portwright.emulate.sambaflow._no_effect import is_internal, patched_torch
from portwright.emulate.sambaflow._refusal import SambaFlowError, not_emulated
from portwright.emulate.sambaflow.samba import nn as nn_
from portwright.emulate.sambaflow.samba import optim, sambatensor, utils
from portwright.emulate.sambaflow.samba.nn.parameter import SambaParameter
from portwright.emulate.sambaflow.samba.sambatensor import (
    SambaTensor,
    from_named_dict,
    from_torch_tensor,
    to_torch,
)
from portwright.emulate.sambaflow.samba.session import SambaSession, session

directives = import_module(f"{__name__}.directives")  # has no file: ModuleMaker makes it

__all__ = [
    "SambaParameter", "SambaSession", "SambaTensor", "addmm", "directives", "from_named_dict",
    "from_torch", "from_torch_", "from_torch_model_", "from_torch_tensor", "groupby", "is_internal",
    "ones", "optim", "patched_torch", "rand", "randint", "randn", "randn_like", "sambatensor", "session",
    "to_torch", "triu_fill", "utils", "zeros",
]  # fmt: skip


from_torch_ = from_torch_model_  # its older name


def from_torch(
    torch_tensor: Tensor, name: str | None = None, batch_dim: int | None = None, **options: Any
) -> SambaTensor:
    """The older name of from_torch_tensor."""
    if isinstance(torch_tensor, nn.Module):
        raise SambaFlowError("from_torch got a model.", "Use samba.from_torch_model_(model).")
    return from_torch_tensor(torch_tensor, name=name, batch_dim=batch_dim, **options)


def _of_size(make: Callable[..., Tensor]) -> Callable[..., SambaTensor]:
    """What a function of torch makes of a size, as a SambaTensor."""

    def made(
        *size: Any, name: str | None = None, batch_dim: int | None = None, **options: Any
    ) -> SambaTensor:
        return from_torch_tensor(make(*size, **options), name, batch_dim)

    return made


randn, rand, zeros, ones = map(_of_size, (torch.randn, torch.rand, torch.zeros, torch.ones))


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


triu_fill, groupby = not_emulated("samba.triu_fill"), not_emulated("samba.groupby")


class _Samba(ModuleType):
    """Keeps the session's object under its name, where Python would put the module of that name each time it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "session" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


globals()["nn"] = nn_
sys.modules[__name__].__class__ = _Samba
