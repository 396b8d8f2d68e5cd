"""SambaTensor: a torch tensor with a name that the device knows it by.

The vendor's class wraps a tensor and behaves like one; ours is a subclass, which shares memory with the tensor it is made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from portwright.emulate.sambaflow._refusal import SambaFlowError, refuse

# What changes neither the meaning nor the shape of a tensor keeps its name: compile-time inputs are often cast by a chain of these.
_KEEP_NAME = frozenset(
    {"bfloat16", "float", "half", "double", "int", "long", "short", "bool", "to", "type", "contiguous", "clone", "detach", "cpu"}
)  # fmt: skip


class SambaTensor(Tensor):
    """A tensor that an RDU is to see; `name` is what inputs are matched by, `batch_dim` the dimension that is the batch."""

    sn_name: str | None = None
    _batch_dim: int | None
    sn_grad: Tensor | None
    host_memory: bool

    def __new__(
        cls,
        torch_tensor: Tensor | None = None,
        shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        materializer: Any = None,
        is_complex: bool | None = None,
        region_name: str | None = None,
    ) -> SambaTensor:
        for option, value in (
            ("sized_dims", sized_dims),
            ("materializer", materializer),
            ("is_complex", is_complex),
            ("region_name", region_name),
        ):
            if value:
                refuse(f"SambaTensor({option}=...)", "every tensor has its data here", f"Leave {option} out.")
        if torch_tensor is None:
            if shape is None:
                raise SambaFlowError(
                    "SambaTensor got neither a tensor nor a shape.", "Give torch_tensor or shape."
                )
            torch_tensor = torch.zeros(tuple(shape), dtype=dtype)
        elif not isinstance(torch_tensor, Tensor):
            raise SambaFlowError(
                f"SambaTensor got {type(torch_tensor).__name__}, not a tensor.", "Give a torch.Tensor."
            )
        elif dtype is not None and dtype != torch_tensor.dtype:
            torch_tensor = torch_tensor.to(dtype)
        made = torch_tensor.detach().as_subclass(cls)
        made.requires_grad_(torch_tensor.requires_grad)
        return _marked(made, name, batch_dim)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, dict(kwargs or {}))  # type: ignore[no-untyped-call]
        source = args[0] if args else None
        if isinstance(result, SambaTensor) and isinstance(source, SambaTensor) and result is not source:
            keeps = getattr(func, "__name__", "") in _KEEP_NAME and result.shape == source.shape
            name, batch_dim = (source.sn_name, source.batch_dim) if keeps else (None, None)
            with torch._C.DisableTorchFunctionSubclass():
                _marked(result, name, batch_dim)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> SambaTensor:
        copied = from_torch_tensor(to_torch(self).detach().clone(), self.sn_name, self.batch_dim)
        copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    @property
    def batch_dim(self) -> int | None:
        return self.__dict__.get("_batch_dim")

    @property
    def has_data(self) -> bool:
        return True

    @property
    def sn_data(self) -> Tensor:
        """The values as they are on the device: for inputs and outputs, those of the last run."""
        return self.torch()

    def torch(self) -> Tensor:
        """The tensor inside; both share their memory."""
        inside: Tensor = to_torch(self)
        return inside


def _marked(tensor: SambaTensor, name: str | None, batch_dim: int | None) -> SambaTensor:
    if name is not None and not (isinstance(name, str) and name):
        raise SambaFlowError(f"a tensor's name is {name!r}.", "Give a string, such as name='image'.")
    if batch_dim is not None:
        if isinstance(batch_dim, bool) or not isinstance(batch_dim, int):
            raise SambaFlowError(f"batch_dim is {batch_dim!r}.", "Give the number of a dimension.")
        if not -tensor.ndim <= batch_dim < tensor.ndim:
            raise SambaFlowError(
                f"batch_dim={batch_dim}, and the tensor '{name}' has {tensor.ndim} dimension(s).",
                "Give the number of the dimension that counts samples.",
            )
        batch_dim %= tensor.ndim
    tensor.__dict__.update(sn_name=name, _batch_dim=batch_dim, sn_grad=None, host_memory=True)
    return tensor


def from_torch_tensor(
    torch_tensor: Tensor,
    name: str | None = None,
    batch_dim: int | None = None,
    named_dims: Iterable[str | None] | None = None,
    **options: Any,
) -> SambaTensor:
    return SambaTensor(torch_tensor, name=name, batch_dim=batch_dim, named_dims=named_dims, **options)


def from_named_dict(tensors: Mapping[str, Tensor]) -> list[SambaTensor]:
    """Each tensor of a dictionary under its key."""
    return [from_torch_tensor(tensor, name=name) for name, tensor in tensors.items()]


def to_torch(tensor: Any) -> Any:
    """The plain tensor of a SambaTensor; lists, tuples and dictionaries are gone through."""
    if isinstance(tensor, SambaTensor):
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.as_subclass(Tensor)
    if isinstance(tensor, Mapping):
        return {key: to_torch(value) for key, value in tensor.items()}
    if isinstance(tensor, tuple | list):
        return type(tensor)(to_torch(value) for value in tensor)
    return tensor
