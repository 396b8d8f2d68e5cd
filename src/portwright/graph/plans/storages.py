"""The storages behind a step's tensors: when each lives, and what it comes from."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from portwright.graph.graph import Graph, Node
from portwright.graph.plans.flops import is_product
from portwright.graph.plans.rows import Rows


class Storages:
    """Lifetimes and origins of the storages of a graph's forward and backward pass.

    A storage is named by the value that owns it; a moment is a position in `nodes`.
    """

    def __init__(self, graph: Graph, rows: Rows) -> None:
        self.graph = graph
        taken = [(i, node) for i, node in enumerate(graph.nodes) if node.phase != "optimizer"]
        self.nodes: list[Node] = [node for _, node in taken]
        self.layer = [rows.of_node(i) for i, _ in taken]  # of each node
        self.root = _roots(graph)
        self.born: dict[int, int] = {}  # moment at which an activation is made
        self.dies: dict[int, int] = {}  # last moment at which it or a view of it is touched
        self._readers: dict[int, list[int]] = {}  # moments of nodes that compute something else from it
        for moment, node in enumerate(self.nodes):
            made = {self.root[i] for i in node.outputs}
            for storage in made:
                if graph.values[storage].kind == "activation":
                    self.born.setdefault(storage, moment)
            for index in (*node.inputs, *node.outputs):
                self.dies[self.root[index]] = moment
            for storage in {self.root[i] for i in node.inputs} - made:
                self._readers.setdefault(storage, []).append(moment)
        self.first_backward = next(
            (i for i, node in enumerate(self.nodes) if node.phase == "backward"), len(self.nodes)
        )
        if graph.trains:
            for storage in self.gradients:
                self.dies[storage] = len(self.nodes)
        if graph.loss >= 0:
            self.dies[self.root[graph.loss]] = len(self.nodes)

    @cached_property
    def copies(self) -> set[int]:
        """Storages that the forward pass makes from weights alone: copies in another dtype or layout."""
        values = self.graph.values
        weights = {self.root[v.index] for v in values if v.kind == "parameter"}
        copies: set[int] = set()
        for node in self.nodes[: self.first_backward]:
            sources = {self.root[i] for i in node.inputs}
            if sources and sources <= (weights | copies):
                made = {self.root[i] for i in node.outputs} - weights
                copies |= {storage for storage in made if values[storage].kind == "activation"}
        return copies

    @cached_property
    def gradients(self) -> set[int]:
        """Gradients of trained parameters: made in the backward pass, never read, with some view of a parameter's shape."""
        if not self.graph.trains:
            return set()
        values = self.graph.values
        left = Counter(v.shape for v in values if v.kind == "parameter" and v.requires_grad)
        views: dict[int, list[tuple[int, ...]]] = {}
        for value in values:
            if self.born.get(self.root[value.index], -1) >= self.first_backward:
                views.setdefault(self.root[value.index], []).append(value.shape)
        found: set[int] = set()
        for storage, shapes in views.items():
            shape = next((s for s in reversed(shapes) if left[s] > 0), None)
            if shape is not None and not self._readers.get(storage):
                left[shape] -= 1
                found.add(storage)
        return found

    @cached_property
    def scaled(self) -> set[int]:
        """Storages that grow with the batch: computed from the inputs, and neither gradients nor elementwise steps to one."""
        batch = {self.root[v.index] for v in self.graph.values if v.kind == "input"}
        for node in self.nodes:
            if any(self.root[i] in batch for i in node.inputs):
                batch.update(self.root[i] for i in node.outputs)
        return (
            {storage for storage in self.born if storage in batch} - self._towards_gradients() - self.copies
        )

    def _towards_gradients(self) -> set[int]:
        """Gradients and the values that become them element by element, such as one in half precision or a summand.

        Values before a product are left out, since the product sums over the batch.
        """
        found = set(self.gradients)
        for moment in range(len(self.nodes) - 1, self.first_backward - 1, -1):
            node = self.nodes[moment]
            made = {self.root[i] for i in node.outputs}
            if not made <= found or is_product(node):
                continue
            sizes = {self.graph.values[storage].num_elements for storage in made}
            for storage in {self.root[i] for i in node.inputs} - made:
                is_alike = {self.graph.values[storage].num_elements} == sizes
                if is_alike and self.born.get(storage, -1) >= self.first_backward:
                    found.add(storage)
        return found

    def is_saved(self, storage: int) -> bool:
        """Whether the forward pass keeps it for the backward pass."""
        is_loss = self.graph.loss >= 0 and storage == self.root[self.graph.loss]
        return self.born[storage] < self.first_backward <= self.dies[storage] and not is_loss


def _roots(graph: Graph) -> list[int]:
    """The value that owns each value's storage."""
    roots: list[int] = []
    for value in graph.values:
        root = value.index
        for _ in graph.values:  # a chain is never longer than this, whatever a graph says
            base = graph.values[root].base
            if base < 0 or base == root:
                break
            root = roots[base] if base < len(roots) else base
        roots.append(root)
    return roots
