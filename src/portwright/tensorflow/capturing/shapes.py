"""Tensors whose size is unknown before the step runs: the op that lost the size, and the cure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.capturing.places import OpPlaces
from portwright.watching.place import Place

_BATCHES = frozenset(
    [
        "BatchDataset",
        "BatchDatasetV2",
        "PaddedBatchDataset",
        "PaddedBatchDatasetV2",
        "MapAndBatchDataset",
        "ParallelBatchDataset",
        "ExperimentalMapAndBatchDataset",
    ]
)


class UnknownShape(Exception):
    """The graph does not say the size of a tensor of the step."""

    def __init__(self, tensor: Any, place: Place | None) -> None:
        super().__init__(str(tensor))
        self.tensor, self.place = tensor, place


def check_inputs(inputs: Mapping[str, Any], places: OpPlaces, graph: Any) -> None:
    """Refuses a batch whose sizes are not all known."""
    for name, tensor in inputs.items():
        if tensor.shape.is_fully_defined():
            continue
        batching = [op for op in graph.get_operations() if op.type in _BATCHES]
        line = places.find(batching[-1]) if batching else None
        where = f"{line}: " if line is not None else ""
        if tensor.shape.rank and tensor.shape[0] is None:
            rest = tensor.shape[1:].is_fully_defined()
            raise UserError(
                f"{where}the batch size of the input {name!r} is not known: its shape is {tensor.shape}.",
                "Batch with a fixed size: dataset.batch(batch_size, drop_remainder=True)"
                + ("." if rest else ", and give every other dimension a fixed size too."),
            )
        raise UserError(
            f"{where}the input {name!r} has the shape {tensor.shape}, which is not known in full.",
            "Give it a fixed shape in the input function: tf.io.FixedLenFeature, tf.ensure_shape, or padding to one length.",
        )


def explain(unknown: UnknownShape, places: OpPlaces) -> UserError:
    """The error for a tensor of the model: the op that lost the size, its line, and what to do."""
    origin = _find_origin(unknown.tensor)
    place = places.find(origin) or unknown.place
    where = f"{place}: " if place is not None else ""
    shape = origin.outputs[0].shape if origin.outputs else unknown.tensor.shape
    what = f"{where}{origin.type} makes the tensor {origin.name!r} of shape {shape}, which is not known before the step runs."
    if "PyFunc" in origin.type:
        return UserError(
            what, "Do that work in the input function, or give the result a shape: result.set_shape([...])."
        )
    if origin.type in ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "BooleanMask", "ListDiff"):
        return UserError(what, "Keep the shape fixed: multiply by a mask, or tf.where(condition, x, y).")
    if origin.type.startswith("Placeholder"):
        return UserError(what, "Give it a shape, or take the tensor from the input function.")
    return UserError(
        what,
        "Use numbers that are known when the graph is built (tensor.shape[i]), or tf.ensure_shape(tensor, [...]).",
    )


def _find_origin(tensor: Any) -> Any:
    """The first op before this one that has a result of unknown size although the sizes of all its inputs are known."""
    seen: set[Any] = set()
    op = tensor.op
    while op not in seen:
        seen.add(op)
        before = next(
            (
                source.op
                for source in op.inputs
                if not source.shape.is_fully_defined() and source.dtype.name not in ("resource", "variant")
            ),
            None,
        )
        if before is None:
            return op
        op = before
    return op


_MOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Literal:
    """A small constant as Python numbers; None for one computed from shapes, whose value is not needed."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


def literal_of(tensor: Any) -> Literal | None:
    """The literal of a scalar, or of a short row of integers such as a shape; None for what a device holds as a tensor."""
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
    """The value of a constant, or of ops on constants and known shapes; None where this function cannot compute it."""
    found = tf.get_static_value(tensor)
    if found is not None:
        return found
    compute = _COMPUTED.get(tensor.op.type)
    if compute is None:
        return None
    given = [number_of(source) for source in tensor.op.inputs]
    return None if any(value is None for value in given) else compute(tensor.op, *given)


def _slice(op: Any, value: Any, begin: Any, end: Any, strides: Any) -> Any:
    """The value of a slice of a row of numbers, such as one dimension of a shape."""
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
