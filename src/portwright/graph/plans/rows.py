"""The layers of a model as a person would name them: its modules at a readable depth, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from portwright.graph.graph import Graph, Module, Node

_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
_NOT_YET = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One layer: a module with its submodules, and the ops on its output before the next layer."""

    path: str  # '' for what belongs to no layer
    kind: str
    repeats: str = ""  # path of the layer that this one is a copy of

    @property
    def name(self) -> str:
        return self.path or "(model)"


class Rows:
    """The layers of a graph, and which one a node or a parameter belongs to.

    A module deeper than a layer belongs to it. An op that a module above the layers calls, such as an activation between two
    of them or the loss, belongs to the layer whose output it works on; before the first layer, to that one.
    """

    def __init__(self, graph: Graph) -> None:
        self._modules = {module.path: module for module in graph.modules}
        self._chosen = _choose(graph.modules)
        self._owner: dict[str, str | None] = {}
        self._index: dict[str, int] = {}
        self.rows: list[Row] = []
        self._maker: dict[int, int] = {}  # value: layer of the node that made it
        self._of_node: list[int] = []  # by position in graph.nodes
        by_index: dict[int, int] = {}
        waiting: list[int] = []  # positions of what runs before the first layer
        for position, node in enumerate(graph.nodes):
            forward = by_index.get(node.forward) if node.forward >= 0 else None
            layer = forward if forward is not None else self._find(node)
            if layer == _NOT_YET:
                waiting.append(position)
            elif waiting:
                self._settle(waiting, layer, graph, by_index)
            self._of_node.append(layer)
            by_index[node.index] = layer
            self._maker.update(dict.fromkeys(node.outputs, layer))
        if waiting:
            self._settle(waiting, self._number(""), graph, by_index)
        for value in graph.values:
            if value.kind in ("parameter", "buffer", "constant"):
                self.of_value(value.name)

    def of_node(self, position: int) -> int:
        """The layer of a node, by its position in the graph."""
        return self._of_node[position]

    def of_value(self, name: str) -> int:
        """The layer that holds a parameter or buffer, by its name in the state_dict."""
        path = name.rpartition(".")[0]
        owner = self._layer_over(path)
        return self._number(path if owner is None else owner)

    def _find(self, node: Node) -> int:
        owner = self._layer_over(node.module)
        if owner is not None:
            return self._number(owner)
        return max((self._maker[i] for i in node.inputs if i in self._maker), default=_NOT_YET)

    def _settle(self, waiting: list[int], layer: int, graph: Graph, by_index: dict[int, int]) -> None:
        for position in waiting:
            if position < len(self._of_node):
                self._of_node[position] = layer
            by_index[graph.nodes[position].index] = layer
            self._maker.update(dict.fromkeys(graph.nodes[position].outputs, layer))
        waiting.clear()

    def _layer_over(self, path: str) -> str | None:
        if path not in self._owner:
            owner = path
            while owner and owner not in self._chosen:
                owner = owner.rpartition(".")[0]
            self._owner[path] = owner or None
        return self._owner[path]

    def _number(self, path: str) -> int:
        path = path if path in self._modules else ""
        index = self._index.get(path)
        if index is None:
            module = self._modules.get(path)
            index = self._index[path] = len(self.rows)
            copied = module.repeats if module is not None and module.repeats in self._chosen else ""
            self.rows.append(Row(path, module.kind if module is not None else "", copied))
        return index


def _choose(modules: Iterable[Module]) -> frozenset[str]:
    """Descends to leaves, but stops at the elements of a list: a block of a transformer is one layer, not twelve."""
    kinds = {module.path: module.kind for module in modules}
    children: dict[str, list[str]] = {}
    for path in kinds:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    chosen: set[str] = set()
    pending = [(path, False) for path in children.get("", [])]
    if all(path.isdecimal() for path, _ in pending) or kinds.get("") in _CONTAINERS:
        pending = [(path, True) for path, _ in pending]
    while pending:
        path, is_element = pending.pop()
        below = children.get(path, [])
        is_container = bool(below) and (
            kinds[path] in _CONTAINERS or all(child.rpartition(".")[2].isdecimal() for child in below)
        )
        if not below or (is_element and not is_container):
            chosen.add(path)
        else:
            pending += [(child, is_element or is_container) for child in below]
    return frozenset(chosen)
