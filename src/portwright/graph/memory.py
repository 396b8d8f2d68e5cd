"""Memory of a step: what stays, and what lives for a while, followed node by node.

A tensor's storage lives from the node that makes it to the last one that reads it or a view of it. What the backward pass
still reads of the forward pass is what a step must save. Weights, optimizer state and inputs live throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from portwright.graph.graph import Graph, Node
from portwright.graph.optimizer_state import OptimizerCost
from portwright.graph.rows import Rows

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
    activations: int = 0  # that the backward pass reads, or the most at once where nothing is saved
    live_forward: int = 0  # most activations of the whole model at once while this layer runs forward
    live_backward: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """What lives at one node, beside what always lives."""

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
    moments: tuple[Moment, ...]  # that can be the peak: no other exceeds them in both parts
    working: tuple[
        Moment, ...
    ]  # one a layer: most at once of what it makes and reads while it runs, gradients left out

    @property
    def resident(self) -> int:
        """Bytes that live throughout, whatever the batch."""
        return self.weights + self.optimizer

    def peak_at(self, batch_size: int) -> int:
        """The peak with another batch size: what comes from the batch grows with it, the rest stays."""
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
    return _Liveness(graph, rows, optimizer).measure()


class _Liveness:
    def __init__(self, graph: Graph, rows: Rows, optimizer: OptimizerCost) -> None:
        self.graph, self.rows, self.optimizer = graph, rows, optimizer
        taken = [(i, node) for i, node in enumerate(graph.nodes) if node.phase != "optimizer"]
        self.nodes = [node for _, node in taken]
        self.layer = [rows.of_node(i) for i, _ in taken]
        self.root = _roots(graph)
        self.born: dict[int, int] = {}  # storage: position of the node that makes it
        self.dies: dict[int, int] = {}  # storage: position of the last node that touches it
        for position, node in enumerate(self.nodes):
            for index in node.outputs:
                if graph.values[self.root[index]].kind == "activation":
                    self.born.setdefault(self.root[index], position)
            for index in (*node.inputs, *node.outputs):
                self.dies[self.root[index]] = position

    def measure(self) -> Memory:
        graph, values = self.graph, self.graph.values
        trained = [v for v in values if v.kind == "parameter" and v.requires_grad]
        stored = {self.root[v.index]: v for v in values if v.kind in ("parameter", "buffer", "constant")}
        inputs = {self.root[v.index]: v.num_bytes for v in values if v.kind == "input"}
        from_weights, from_batch = self._trace_origins()
        gradients = self._gradients(Counter(v.shape for v in trained)) if graph.trains else set()
        if graph.loss >= 0:
            self.dies[self.root[graph.loss]] = len(self.nodes)
        num_layers = len(self.rows.rows)
        weights, copies = [0] * num_layers, [0] * num_layers
        layer_gradients, state, saved = [0] * num_layers, [0] * num_layers, [0] * num_layers
        for value in stored.values():
            weights[self.rows.of_value(value.name)] += value.num_bytes
        for value in trained:
            layer = self.rows.of_value(value.name)
            layer_gradients[layer] += value.num_bytes if graph.trains else 0
            state[layer] += self.optimizer.bytes_of(value) if graph.trains else 0
        first_backward = next(
            (i for i, node in enumerate(self.nodes) if node.phase == "backward"), len(self.nodes)
        )
        for storage, born in self.born.items():
            layer = self.layer[born]
            if storage in from_weights:
                copies[layer] += values[storage].num_bytes
            elif born < first_backward <= self.dies[storage] and storage != self._loss_root:
                saved[layer] += values[storage].num_bytes
        walked = self._walk(from_weights, from_batch, gradients, sum(inputs.values()))
        return Memory(
            weights=sum(weights),
            weight_copies=walked.most_copies,
            gradients=sum(layer_gradients),
            optimizer=sum(state),
            inputs=sum(inputs.values()),
            activations=walked.most_activations,
            saved=sum(saved),
            peak=sum(weights) + sum(state) + walked.most,
            layers=tuple(
                LayerMemory(
                    weights[i],
                    copies[i],
                    layer_gradients[i],
                    state[i],
                    saved[i] if graph.trains else walked.most_of_layer[i],
                    walked.live["forward"][i],
                    walked.live["backward"][i],
                )
                for i in range(num_layers)
            ),
            batch_size=max(graph.batch_size, 1),
            moments=_pareto(walked.moments),
            working=tuple(walked.working),
        )

    @property
    def _loss_root(self) -> int:
        return self.root[self.graph.loss] if self.graph.loss >= 0 else -1

    def _trace_origins(self) -> tuple[set[int], set[int]]:
        """Storages made of weights alone (copies in another dtype), and those that come from the batch."""
        values = self.graph.values
        weights = {self.root[v.index] for v in values if v.kind == "parameter"}
        batch = {self.root[v.index] for v in values if v.kind == "input"}
        copies: set[int] = set()
        for node in self.nodes:
            sources = {self.root[i] for i in node.inputs}
            made = {self.root[i] for i in node.outputs} - weights
            if sources and sources <= (weights | copies) and node.phase == "forward":
                copies |= {s for s in made if values[s].kind == "activation"}
            if sources & batch:
                batch |= made
        return copies, batch - copies

    def _gradients(self, shapes: Counter[tuple[int, ...]]) -> set[int]:
        """Backward storages that nobody reads and that have a trained parameter's shape: they live until the update."""
        left, found = Counter(shapes), set()
        for storage, born in self.born.items():
            node, value = self.nodes[born], self.graph.values[storage]
            if node.phase != "backward" or self._is_read(storage, born):
                continue
            # A gradient may be stored transposed: its last view has the parameter's shape.
            for shape in (value.shape, value.shape[::-1]):
                if left[shape] > 0:
                    left[shape] -= 1
                    found.add(storage)
                    self.dies[storage] = len(self.nodes)
                    break
        return found

    def _is_read(self, storage: int, born: int) -> bool:
        last = self.nodes[self.dies[storage]]
        if self.dies[storage] == born:
            return False
        # Its last node may be a view of it, which reads nothing.
        return not all(self.root[i] == storage for i in last.outputs)

    def _walk(self, copies: set[int], batch: set[int], gradients: set[int], input_bytes: int) -> _Walked:
        values = self.graph.values
        weight_shapes = {v.shape for v in values if v.kind == "parameter" and len(v.shape) > 1}
        weight_shapes |= {shape[::-1] for shape in weight_shapes}
        walked = _Walked(len(self.rows.rows))
        scaled, fixed = input_bytes, 0
        live_copies = live_gradients = 0
        of_layer = [[0, 0] for _ in self.rows.rows]  # fixed and scaled bytes that a layer made and that live
        ending: dict[int, list[int]] = {}
        for storage in self.born:
            ending.setdefault(self.dies[storage], []).append(storage)
        starting: dict[int, list[int]] = {}
        for storage, born in self.born.items():
            starting.setdefault(born, []).append(storage)

        def is_scaled(storage: int) -> bool:
            is_weight_like = (
                self.nodes[self.born[storage]].phase == "backward" and values[storage].shape in weight_shapes
            )
            return storage in batch and storage not in gradients and not is_weight_like

        for position, node in enumerate(self.nodes):
            for storage in starting.get(position, ()):
                size = values[storage].num_bytes
                scaled, fixed = (scaled + size, fixed) if is_scaled(storage) else (scaled, fixed + size)
                live_copies += size if storage in copies else 0
                live_gradients += size if storage in gradients else 0
                if storage not in copies and storage not in gradients:
                    of_layer[self.layer[self.born[storage]]][is_scaled(storage)] += size
            activations = scaled + fixed - live_copies - live_gradients - input_bytes
            walked.see(scaled, fixed, activations, live_copies, self.layer[position], node)
            walked.see_working(self.layer[position], *self._reads_from_others(position, of_layer, is_scaled))
            for storage in ending.get(position, ()):
                size = values[storage].num_bytes
                scaled, fixed = (scaled - size, fixed) if is_scaled(storage) else (scaled, fixed - size)
                live_copies -= size if storage in copies else 0
                live_gradients -= size if storage in gradients else 0
                if storage not in copies and storage not in gradients:
                    of_layer[self.layer[self.born[storage]]][is_scaled(storage)] -= size
        return walked

    def _reads_from_others(
        self, position: int, of_layer: list[list[int]], is_scaled: Callable[[int], bool]
    ) -> tuple[int, int]:
        """Scaled and fixed bytes that a layer needs at a node: its own that live, and what the node reads of others."""
        layer = self.layer[position]
        fixed, scaled = of_layer[layer]
        for storage in {self.root[i] for i in self.nodes[position].inputs}:
            value = self.graph.values[storage]
            if value.kind == "input":
                scaled += value.num_bytes
            elif storage in self.born and self.layer[self.born[storage]] != layer:
                fixed, scaled = (
                    (fixed, scaled + value.num_bytes)
                    if is_scaled(storage)
                    else (fixed + value.num_bytes, scaled)
                )
        return scaled, fixed


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


def _roots(graph: Graph) -> list[int]:
    """The value that owns each value's storage."""
    roots: list[int] = []
    for value in graph.values:
        root, seen = value.index, 0
        while 0 <= graph.values[root].base != root and seen <= len(graph.values):
            root, seen = graph.values[root].base, seen + 1
            if root < len(roots):
                root = roots[root]
                break
        roots.append(root)
    return roots
