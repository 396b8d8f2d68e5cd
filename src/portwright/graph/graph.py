"""A training step as a graph: what ran, on which shapes, in which module, at which line of the user's code.

The types are ours and free of torch, so that matching, planning and drawing need neither a model nor a device, and a graph
can be kept as JSON. Tensors are numbered values; a node reads some and makes some. An argument that is a tensor appears as
`Ref(value)`; everything else is a plain Python value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar

from portwright.watching.place import Place

Phase = Literal["forward", "backward", "optimizer"]
Kind = Literal["parameter", "buffer", "input", "constant", "activation"]

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e8m0fnu": 1,
    "qint8": 1,
    "quint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "qint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor: the number of its value."""

    value: int


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the step."""

    index: int
    shape: tuple[int, ...]
    dtype: str  # as torch names it, without 'torch.'
    kind: Kind
    name: str = ""  # of a parameter, buffer or input
    base: int = -1  # the value whose storage it shares; itself where it has its own
    requires_grad: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """One op call of the step, as the dispatcher saw it below autograd."""

    index: int
    op: str  # 'aten.convolution.default'
    phase: Phase
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]  # values, each once
    outputs: tuple[int, ...]
    module: str = ""  # path in the model, '' for the root and the loss
    place: Place | None = None  # of a backward node: the line whose gradient it computes
    call: str = ""  # the torch function that the user's line called, such as 'torch.nn.functional.one_hot'; '' if not known
    forward: int = -1  # of a backward node: the forward node whose gradient it is a part of


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the model."""

    path: str
    kind: str  # class name
    parameters: int  # elements of its own parameters, children left out
    repeats: str = ""  # path of the module that this one is a copy of: same kind, sizes and inputs


@dataclass(frozen=True, slots=True)
class Stop:
    """A place where the step reads a tensor's values on the host, or has a shape that depends on them.

    Capture goes on behind it with a guess where it can, so that one run finds more than the first.
    """

    kind: Literal["host_read", "dynamic_shape", "host_tensor", "failure"]
    op: str
    module: str
    place: Place | None
    message: str
    is_last: bool = False  # nothing behind it was seen


@dataclass(frozen=True)
class Graph:
    """A whole training step (or a forward pass), loss included."""

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    modules: tuple[Module, ...]
    stops: tuple[Stop, ...]
    batch_size: int
    trains: bool
    loss: int = -1  # value
    optimizer: str = ""  # such as 'AdamW'; its state is accounted for by the plan
    info: Mapping[str, Any] = field(default_factory=dict)  # torch version, precision policy, seconds

    @cached_property
    def num_parameters(self) -> int:
        return sum(v.num_elements for v in self.values if v.kind == "parameter")

    def of_phase(self, phase: Phase) -> Iterator[Node]:
        return (node for node in self.nodes if node.phase == phase)

    def input_values(self, node: Node) -> list[Value]:
        return [self.values[i] for i in node.inputs]

    def output_values(self, node: Node) -> list[Value]:
        return [self.values[i] for i in node.outputs]


Found = TypeVar("Found")


def once_a_graph(find: Callable[[Graph], Found]) -> Callable[[Graph], Found]:
    """Keeps what a function finds in a graph with that graph, since a table judges its nodes one by one."""
    name = f"{find.__module__}.{find.__qualname__}"

    @wraps(find)
    def look(graph: Graph) -> Found:
        kept = vars(graph)
        if name not in kept:
            kept[name] = find(graph)
        found: Found = kept[name]
        return found

    return look


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
