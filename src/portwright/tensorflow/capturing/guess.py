"""Shapes behind an op whose result has as many elements as its values say: the most there can be are assumed.

Such an op is refused by every compiler, so the step does not run as it is; with a guess the rest of it can still be seen. The
graph is copied with the guessed shapes in place, and TensorFlow infers the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

Shape = tuple[int, ...]

_PREFIX = "portwright_guess"


def _first(op: Any) -> Shape:
    return tuple(op.inputs[0].shape.as_list())


# By op type: the shapes of its results, where its inputs' are known.
_MOST: dict[str, Callable[[Any], list[Shape]]] = {
    "Where": lambda op: [(math.prod(_first(op)), len(_first(op)))],
    "Unique": lambda op: [_first(op), _first(op)],
    "UniqueV2": lambda op: [_first(op), (math.prod(_first(op)[:1]),)],
    "UniqueWithCounts": lambda op: [_first(op), _first(op), _first(op)],
    "ListDiff": lambda op: [_first(op), _first(op)],
    "DynamicPartition": lambda op: [
        (math.prod(op.inputs[1].shape.as_list()), *_first(op)[op.inputs[1].shape.rank :]) for _ in op.outputs
    ],
}


def depends_on_values(op: Any) -> bool:
    return op.type in _MOST


def guess_shapes(graph: Any) -> dict[str, Shape]:
    """By tensor name: shapes that follow once each op that selects by value selects everything; {} where there is none."""
    replaced: dict[str, list[Shape]] = {}
    current, found = graph, {}
    while True:
        new = {
            op.name: _MOST[op.type](op)
            for op in current.get_operations()
            if op.type in _MOST
            and op.name not in replaced
            and not op.name.startswith(_PREFIX)
            and all(tensor.shape.is_fully_defined() for tensor in op.inputs)
        }
        if not new:
            break
        replaced.update(new)
        current = _copy(graph, replaced)
        found = {
            tensor.name: tuple(tensor.shape.as_list())
            for op in current.get_operations()
            for tensor in op.outputs
            if tensor.shape.is_fully_defined()
        }
        for name, shapes in replaced.items():
            found.update({f"{name}:{index}": shape for index, shape in enumerate(shapes)})
    return found


def _copy(graph: Any, replaced: Mapping[str, list[Shape]]) -> Any:
    definition = graph.as_graph_def()
    renamed: dict[str, str] = {}
    for name, shapes in replaced.items():
        op = graph.get_operation_by_name(name)
        for index, shape in enumerate(shapes):
            stand_in = f"{_PREFIX}/{name}_{index}"
            node = definition.node.add(name=stand_in, op="Placeholder")
            node.attr["dtype"].type = op.outputs[index].dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
            renamed[f"{name}:{index}" if index else name] = stand_in
    for node in definition.node:
        for position, source in enumerate(node.input):
            if source in renamed:
                node.input[position] = renamed[source]
    copied = tf.Graph()
    with copied.as_default():
        tf.import_graph_def(definition, name="")
    return copied
