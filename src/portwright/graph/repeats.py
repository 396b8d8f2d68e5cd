"""Finds modules that are copies of each other, so that a refusal in all of them is told once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from portwright.graph.graph import Module, Node, Ref, Value


def key_of(node: Node, values: Sequence[Value]) -> tuple[Any, ...]:
    """What a node computes, by shapes and types: equal for the same op of two equal layers."""
    kwargs = tuple(sorted((name, _spec(arg, values)) for name, arg in node.kwargs.items()))
    args = tuple([_spec(arg, values) for arg in node.args])
    made = tuple([(values[i].shape, values[i].dtype) for i in node.outputs])
    return node.op, node.phase, args, kwargs, made


def mark_repeats(
    modules: Iterable[Module], nodes: Iterable[Node], values: Sequence[Value]
) -> tuple[Module, ...]:
    """Names in `repeats` the first module of the same class whose ops, inside and in order, are the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    inside: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in nodes:
        key = key_of(node, values)
        number = numbers.setdefault(key, len(numbers))
        path = node.module
        while path:
            inside[path].append((node.module[len(path) :], number))
            path = path.rpartition(".")[0]
    firsts: dict[tuple[Any, ...], str] = {}
    marked = []
    for module in modules:
        ops = inside.get(module.path)
        if not ops:
            marked.append(module)
            continue
        first = firsts.setdefault((module.kind, module.parameters, tuple(ops)), module.path)
        marked.append(module if first == module.path else replace(module, repeats=first))
    return tuple(marked)


def _spec(arg: Any, values: Sequence[Value]) -> Any:
    if type(arg) is Ref:
        value = values[arg.value]
        return value.shape, value.dtype
    if type(arg) is tuple:
        return tuple([_spec(part, values) for part in arg])
    if type(arg) is dict:
        return tuple([(name, _spec(part, values)) for name, part in arg.items()])
    # 1, 1.0 and True are equal to Python and not to a kernel.
    return arg if type(arg) is str else (type(arg).__name__, arg)
