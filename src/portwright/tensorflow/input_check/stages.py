"""A tf.data pipeline as the list of its stages, read from the ops of its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.tensorflow.capturing.places import OpPlaces
from portwright.tensorflow.graph_walk import reach
from portwright.watching.place import Place

_OPS_OF_KIND = {  # kind of a stage: the beginnings of its ops' names
    "map_and_batch": "MapAndBatch ParallelMapAndBatch",
    "map": "ParallelMap Map",
    "filter": "ParallelFilter Filter",
    "padded_batch": "PaddedBatch",
    "batch": "ParallelBatch Batch",
    "group": "GroupByWindow GroupByReducer",
    "unbatch": "Unbatch",
    "interleave": "ParallelInterleave LegacyParallelInterleave Interleave",
    "flat_map": "FlatMap",
    "shuffle_and_repeat": "ShuffleAndRepeat",
    "shuffle": "Shuffle",
    "repeat": "Repeat",
    "cache": "Cache Snapshot Save",
    "shard": "Shard AutoShard",
    "prefetch": "Prefetch",
    "options": "PrivateThreadPool MaxIntraOpParallelism Options AssertCardinality AssertNext Model Optimize",
    "take": "Take",
    "skip": "Skip",
    "window": "Window",
    "zip": "Zip",
    "concatenate": "Concatenate",
    "choose": "DirectedInterleave",
    "generator": "Generator",
    "files": "TFRecord TextLine FixedLengthRecord CSV ExperimentalCSV LMDB",
    "tensors": "TensorSlice Tensor SparseTensorSlice Range",
    "random": "Random",
}
_KINDS = {op: kind for kind, ops in _OPS_OF_KIND.items() for op in ops.split()}
_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset", "LMDBDataset")
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_RANDOM = ("Random", "StatelessRandom", "Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal", "SampleDistortedBoundingBox")  # fmt: skip
AUTOTUNE = -1


@dataclass(frozen=True)
class Stage:
    """One op of a pipeline."""

    kind: str
    op: str
    place: Place | None
    values: Mapping[str, Any]  # inputs and attributes that are known before the pipeline runs
    function_ops: frozenset[str] = frozenset()  # types of the ops in its function, if it has one
    branches: tuple[tuple[Stage, ...], ...] = field(default=())  # other pipelines that join here

    @property
    def calls_python(self) -> bool:
        return self.kind == "generator" or any(name in _PYTHON for name in self.function_ops)

    @property
    def draws(self) -> bool:
        return any(name.startswith(_RANDOM) for name in self.function_ops)

    @property
    def reads_files(self) -> bool:
        return self.kind == "files" or any(name.startswith(_READERS) for name in self.function_ops)

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        return None if value is None else int(value)

    @property
    def parallel_calls(self) -> int | None:
        """AUTOTUNE, a number above one, or None for one at a time."""
        calls = self.number("num_parallel_calls")
        return None if calls in (None, 0, 1) else calls

    @property
    def drops_remainder(self) -> bool:
        return bool(self.values.get("drop_remainder", False))


def read_stages(dataset: Any, root: Path | None = None) -> tuple[Stage, ...]:
    """The stages of a dataset that was made in a graph, from its source to its end."""
    return _chain(dataset._variant_tensor.op, OpPlaces(root))


def _chain(op: Any, places: OpPlaces) -> tuple[Stage, ...]:
    found: list[Stage] = []
    while op is not None:
        inputs = [
            tensor.op for tensor in op.inputs if tensor.dtype == tf.variant and "Dataset" in tensor.op.type
        ]
        branches = tuple(_chain(other, places) for other in inputs[1:])
        found.append(_stage(op, branches, places))
        op = inputs[0] if inputs else None
    return tuple(reversed(found))


def _stage(op: Any, branches: tuple[tuple[Stage, ...], ...], places: OpPlaces) -> Stage:
    bare = op.type.removeprefix("Experimental")
    fitting = [prefix for prefix in _KINDS if bare.startswith(f"{prefix}Dataset")]
    kind = _KINDS[max(fitting, key=len)] if fitting else op.type
    return Stage(kind, op.type, places.find(op), _values(op), _function_ops(op), branches)


def _values(op: Any) -> dict[str, Any]:
    values = {name: tf.get_static_value(tensor) for name, tensor in _named_inputs(op)}
    for name in ("deterministic", "sloppy", "reshuffle_each_iteration", "num_parallel_calls"):
        if name not in values and name in op.node_def.attr:
            value = op.get_attr(name)
            values[name] = value.decode() if isinstance(value, bytes) else value
    values["num_elements"] = _num_elements(op, values)
    return {name: value for name, value in values.items() if value is not None}


def _num_elements(op: Any, values: Mapping[str, Any]) -> int | None:
    """The number of elements of a source in memory."""
    if op.type == "TensorSliceDataset" and op.inputs[0].shape.rank:
        size = op.inputs[0].shape[0]
        return None if size is None else int(size)
    if op.type == "RangeDataset" and {"start", "stop", "step"} <= values.keys():
        return len(range(*(int(values[name]) for name in ("start", "stop", "step"))))
    return None


def _named_inputs(op: Any) -> Iterator[tuple[str, Any]]:
    """An op's single inputs by their names in its definition; inputs that are lists or no plain tensors are left out."""
    position = 0
    for argument in op.op_def.input_arg:
        if argument.number_attr:
            position += op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            position += len(op.get_attr(argument.type_list_attr))
        else:
            tensor = op.inputs[position]
            if tensor.dtype not in (tf.variant, tf.resource):
                yield argument.name, tensor
            position += 1


def _function_ops(op: Any) -> frozenset[str]:
    found: set[str] = set()

    def called(name: str) -> Iterator[str]:
        function = op.graph._get_function(name)
        if function is None:
            return
        definition = getattr(function, "definition", None) or function.cached_definition
        for node in definition.node_def:
            found.add(node.op)
            yield node.op  # a function too, if the graph has one of this name
            yield from _functions_of(node)

    reach(_functions_of(op.node_def), called)
    return frozenset(found)


def _functions_of(node: Any) -> Iterator[str]:
    return (attr.func.name for attr in node.attr.values() if attr.HasField("func"))
