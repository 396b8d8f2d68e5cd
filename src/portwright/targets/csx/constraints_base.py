"""What rules share: the list of them, and views of a node's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.kernels import Constraint

CONSTRAINTS: dict[str, Constraint] = {}


def constraint(function: Constraint) -> Constraint:
    CONSTRAINTS[function.__name__] = function
    return function


def tensor(graph: Graph, given: Any) -> Value | None:
    return graph.values[given.value] if isinstance(given, Ref) else None


def tensors(graph: Graph, arguments: Sequence[Any]) -> list[Value]:
    return [graph.values[a.value] for a in arguments if isinstance(a, Ref)]


def is_in_place(node: Node) -> bool:
    name = node.op.split(".")[1]
    return name.endswith("_") and not name.endswith("__")


def is_floating(value: Value) -> bool:
    return value.dtype.startswith(("float", "bfloat"))
