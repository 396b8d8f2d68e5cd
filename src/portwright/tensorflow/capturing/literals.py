"""Numbers of a graph that the host knows before the step runs: axes, shapes, scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Literal:
    """A small constant, as Python numbers; None where it is computed from shapes and its value does not matter here."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


def literal_of(tensor: Any) -> Literal | None:
    """A scalar, or a short row of integers such as a shape; None for what a device would hold as a tensor."""
    shape, dtype = tensor.shape, tensor.dtype
    if not shape.is_fully_defined():
        return Literal(None) if dtype.is_integer and shape.rank is not None and shape.rank <= 1 else None
    is_row = dtype.is_integer and shape.rank <= 1 and shape.num_elements() <= _MOST_ELEMENTS
    is_plan = dtype.is_integer and shape.rank == 2 and shape.num_elements() <= 2 * 8  # paddings
    if shape.rank != 0 and not is_row and not is_plan:
        return None
    found = number_of(tensor)
    if found is None:
        return Literal(None)
    listed = found.tolist() if hasattr(found, "tolist") else found
    return Literal(_frozen(listed))


def number_of(tensor: Any) -> Any:
    """The value of a constant, or of what is computed from constants and known shapes; None where that is not done here."""
    from tensorflow.python.framework import tensor_util

    found = tensor_util.constant_value(tensor)
    if found is not None:
        return found
    compute = _COMPUTED.get(tensor.op.type)
    if compute is None:
        return None
    given = [number_of(source) for source in tensor.op.inputs]
    return None if any(value is None for value in given) else compute(tensor.op, *given)


def _slice(op: Any, value: Any, begin: Any, end: Any, strides: Any) -> Any:
    """Of a row of numbers, such as one dimension of a shape; other slices are not needed."""
    if value.ndim != 1 or begin.size != 1 or op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    if op.get_attr("shrink_axis_mask"):
        return value[int(begin[0])]
    first = None if op.get_attr("begin_mask") else int(begin[0])
    last = None if op.get_attr("end_mask") else int(end[0])
    return value[first : last : int(strides[0])]


_COMPUTED: dict[str, Callable[..., Any]] = {
    "StridedSlice": _slice,
    "Add": lambda op, a, b: a + b,
    "AddV2": lambda op, a, b: a + b,
    "Sub": lambda op, a, b: a - b,
    "Mul": lambda op, a, b: a * b,
    "FloorDiv": lambda op, a, b: a // b if np.all(b) else None,
    "Minimum": lambda op, a, b: np.minimum(a, b),
    "Maximum": lambda op, a, b: np.maximum(a, b),
    "Identity": lambda op, a: a,
}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
