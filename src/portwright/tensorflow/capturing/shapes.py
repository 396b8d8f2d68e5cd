"""Tensors whose size is not known before the step runs: who made them so, and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UserError
from portwright.graph.graph import Place
from portwright.tensorflow.capturing.places import OpPlaces

_BATCHES_NAMES = """BatchDataset BatchDatasetV2 PaddedBatchDataset PaddedBatchDatasetV2 MapAndBatchDataset ParallelBatchDataset
    ExperimentalMapAndBatchDataset"""
_BATCHES = frozenset(_BATCHES_NAMES.split())


class UnknownShape(Exception):
    """A tensor of the step has a size that the graph does not say."""

    def __init__(self, tensor: Any, place: Place | None) -> None:
        super().__init__(str(tensor))
        self.tensor, self.place = tensor, place


def check_inputs(inputs: Mapping[str, Any], places: OpPlaces, graph: Any) -> None:
    """Refuses a batch whose sizes are not all known."""
    for name, tensor in inputs.items():
        if tensor.shape.is_fully_defined():
            continue
        line = _batch_line(graph, places)
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
    """The first op on the way here whose result has an unknown size although its inputs have none."""
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


def _batch_line(graph: Any, places: OpPlaces) -> Place | None:
    """The line that batches: the last such dataset of the graph."""
    made = [op for op in graph.get_operations() if op.type in _BATCHES]
    return places.find(made[-1]) if made else None
