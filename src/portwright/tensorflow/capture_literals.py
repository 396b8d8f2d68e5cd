"""Numbers of a graph that the host knows before the step runs: axes, shapes, scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Literal:
    """A small constant, as Python numbers; None where it is computed from shapes and its value does not matter here."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


def literal_of(tensor: Any) -> Literal | None:
    """A scalar, or a short row of integers such as a shape; None for what a device would hold as a tensor."""
    from tensorflow.python.framework import tensor_util

    shape, dtype = tensor.shape, tensor.dtype
    if not shape.is_fully_defined():
        return Literal(None) if dtype.is_integer and shape.rank is not None and shape.rank <= 1 else None
    is_row = dtype.is_integer and shape.rank <= 1 and shape.num_elements() <= _MOST_ELEMENTS
    is_plan = dtype.is_integer and shape.rank == 2 and shape.num_elements() <= 2 * 8  # paddings
    if shape.rank != 0 and not is_row and not is_plan:
        return None
    found = tensor_util.constant_value(tensor)
    if found is None:
        return Literal(None)
    listed = found.tolist() if hasattr(found, "tolist") else found
    return Literal(_frozen(listed))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
