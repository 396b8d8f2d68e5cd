"""Memory of a step: what stays, and what lives for a while, followed node by node.

A tensor's storage lives from the node that makes it to the last one that reads it or a view of it. What the backward pass
still reads of the forward pass is what a step must save. Weights, optimizer state and inputs live throughout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from portwright.graph.graph import Graph, Node
from portwright.graph.plans.flops import is_product
from portwright.graph.plans.optimizer_state import OptimizerCost
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


FORMULA = (
    "weights and buffers as stored; copies of weights in another dtype; optimizer state by its kind; a gradient for each trained "
    "parameter; activations live from the op that makes them to the last that reads them or a view of them"
)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes of one layer, for the batch of the graph."""

    weights: int = 0
    weight_copies: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # read by the backward pass, or the most at once where nothing is saved
    live_forward: int = 0  # most activations of the whole model at once while this layer runs forward
    live_backward: int = 0
    entering: int = 0  # made by other layers and read by this one in the forward pass: its inputs


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive at one node, besides those that live throughout."""

    scaled: int  # bytes that grow with the batch
    fixed: int  # bytes that do not


@dataclass(frozen=True)
class Memory:
    """Bytes of a whole step, for the batch of the graph."""

    weights: int
    weight_copies: int  # in the dtype of mixed precision, most at once
    gradients: int
    optimizer: int
    inputs: int
    activations: int  # most at once
    saved: int  # activations that are kept from the forward pass for the backward pass
    peak: int  # most at once of all of the above; parts peak at different moments, so it is at most their sum
    layers: tuple[LayerMemory, ...]
    batch_size: int
    moments: tuple[Moment, ...]  # candidates for the peak: no other exceeds one in both parts
    # one a layer: most at once of what it makes and reads while it runs, gradients left out
    working: tuple[Moment, ...]

    @property
    def resident(self) -> int:
        """Bytes that live throughout, whatever the batch."""
        return self.weights + self.optimizer

    def peak_at(self, batch_size: int) -> int:
        """The peak with another batch size: bytes that come from the batch grow with it, the others stay."""
        return self.resident + most_bytes(self.moments, self.batch_size, batch_size)


def most_bytes(moments: tuple[Moment, ...], captured: int, batch_size: int) -> int:
    return max((m.fixed + -(-m.scaled * batch_size // captured) for m in moments), default=0)


def largest_batch(moments: tuple[Moment, ...], captured: int, room: int) -> int | None:
    """The largest batch within `room` bytes; 0 if none is, None if the batch does not matter."""
    if room < 0 or any(m.fixed > room for m in moments):
        return 0
    return min(((room - m.fixed) * captured // m.scaled for m in moments if m.scaled), default=None)


def measure_memory(graph: Graph, rows: Rows, optimizer: OptimizerCost) -> Memory:
    """Follows every storage of the graph once; the cost is linear in nodes and values."""
    storages, num_layers = Storages(graph, rows), len(rows.rows)
    weights, gradients, state = ([0] * num_layers for _ in range(3))
    stored = {
        storages.root[v.index]: v for v in graph.values if v.kind in ("parameter", "buffer", "constant")
    }
    for value in stored.values():
        weights[rows.of_value(value.name)] += value.num_bytes
    for value in graph.values:
        if graph.trains and value.kind == "parameter" and value.requires_grad:
            gradients[rows.of_value(value.name)] += value.num_bytes
            state[rows.of_value(value.name)] += optimizer.bytes_of(value)
    copies, saved = [0] * num_layers, [0] * num_layers
    for storage, born in storages.born.items():
        if storage in storages.copies:
            copies[storages.layer[born]] += graph.values[storage].num_bytes
        elif storages.is_saved(storage):
            saved[storages.layer[born]] += graph.values[storage].num_bytes
    entering = _entering(storages, num_layers)
    inputs = {storages.root[v.index]: v.num_bytes for v in graph.values if v.kind == "input"}
    walked = _walk(storages, num_layers, sum(inputs.values()))
    return Memory(
        weights=sum(weights),
        weight_copies=walked.most_copies,
        gradients=sum(gradients),
        optimizer=sum(state),
        inputs=sum(inputs.values()),
        activations=walked.most_activations,
        saved=sum(saved),
        peak=sum(weights) + sum(state) + walked.most,
        layers=tuple(
            LayerMemory(
                weights[i],
                copies[i],
                gradients[i],
                state[i],
                saved[i] if graph.trains else walked.most_of_layer[i],
                walked.live["forward"][i],
                walked.live["backward"][i],
                entering[i],
            )
            for i in range(num_layers)
        ),
        batch_size=max(graph.batch_size, 1),
        moments=_pareto(walked.moments),
        working=tuple(walked.working),
    )


def _walk(storages: Storages, num_layers: int, input_bytes: int) -> _Walked:
    """Follows the bytes that are alive through all nodes in order."""
    values, scaled = storages.graph.values, storages.scaled
    starting: dict[int, list[int]] = {}
    ending: dict[int, list[int]] = {}
    for storage, born in storages.born.items():
        starting.setdefault(born, []).append(storage)
        ending.setdefault(storages.dies[storage], []).append(storage)
    walked = _Walked(num_layers)
    live = [0, input_bytes]  # fixed and scaled
    # fixed and scaled, by the layer that made it, gradients left out
    of_layer = [[0, 0] for _ in range(num_layers)]
    copies = gradients = 0

    def count(storage: int, sign: int) -> None:
        nonlocal copies, gradients
        size = sign * values[storage].num_bytes
        live[storage in scaled] += size
        if storage in storages.copies:
            copies += size
        elif storage in storages.gradients:
            gradients += size
        else:
            of_layer[storages.layer[storages.born[storage]]][storage in scaled] += size

    for moment, node in enumerate(storages.nodes):
        for storage in starting.get(moment, ()):
            count(storage, 1)
        walked.see(
            live[1],
            live[0],
            sum(live) - copies - gradients - input_bytes,
            copies,
            storages.layer[moment],
            node,
        )
        walked.see_working(storages.layer[moment], *_needed_at(storages, moment, of_layer))
        for storage in ending.get(moment, ()):
            count(storage, -1)
    return walked


def _entering(storages: Storages, num_layers: int) -> list[int]:
    read: list[set[int]] = [set() for _ in range(num_layers)]
    for moment, node in enumerate(storages.nodes[: storages.first_backward]):
        layer = storages.layer[moment]
        for storage in {storages.root[i] for i in node.inputs} - storages.copies:
            born = storages.born.get(storage)
            if born is not None and storages.layer[born] != layer:
                read[layer].add(storage)
    return [sum(storages.graph.values[storage].num_bytes for storage in found) for found in read]


def _needed_at(storages: Storages, moment: int, of_layer: list[list[int]]) -> tuple[int, int]:
    """Scaled and fixed bytes that a layer needs at a node: its own living ones, and those of other layers that the node reads."""
    layer = storages.layer[moment]
    needed = list(of_layer[layer])
    for storage in {storages.root[i] for i in storages.nodes[moment].inputs}:
        value = storages.graph.values[storage]
        is_others = storage in storages.born and storages.layer[storages.born[storage]] != layer
        if value.kind == "input" or (is_others and storage not in storages.copies):
            needed[value.kind == "input" or storage in storages.scaled] += value.num_bytes
    return needed[1], needed[0]


class _Walked:
    """The highest points of a walk over the nodes."""

    def __init__(self, num_layers: int) -> None:
        self.most = self.most_activations = self.most_copies = 0
        self.live = {"forward": [0] * num_layers, "backward": [0] * num_layers}
        self.most_of_layer = [0] * num_layers
        self.moments: dict[int, int] = {}  # scaled bytes: most fixed bytes beside them
        self.working = [Moment(0, 0)] * num_layers

    def see(self, scaled: int, fixed: int, activations: int, copies: int, layer: int, node: Node) -> None:
        self.most = max(self.most, scaled + fixed)
        self.most_activations = max(self.most_activations, activations)
        self.most_copies = max(self.most_copies, copies)
        live = self.live["forward" if node.phase == "forward" else "backward"]
        live[layer] = max(live[layer], activations)
        self.most_of_layer[layer] = max(self.most_of_layer[layer], activations)
        if fixed >= self.moments.get(scaled, -1):
            self.moments[scaled] = fixed

    def see_working(self, layer: int, scaled: int, fixed: int) -> None:
        known = self.working[layer]
        if scaled + fixed > known.scaled + known.fixed:
            self.working[layer] = Moment(scaled, fixed)


def _pareto(moments: dict[int, int]) -> tuple[Moment, ...]:
    """The moments that no other exceeds in both parts."""
    kept: list[Moment] = []
    for scaled in sorted(moments, reverse=True):
        if not kept or moments[scaled] > kept[-1].fixed:
            kept.append(Moment(scaled, moments[scaled]))
    return tuple(kept)
