"""The optimizer's state in bytes and its arithmetic in operations, counted from the step's graph."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from portwright.graph.graph import ITEM_BYTES, Node, Value
from portwright.graph.plans.flops import flops_of_node
from portwright.graph.plans.optimizer_state import OptimizerCost

_UPDATES = {  # name in a plan: the endings of its update ops, after ResourceApply
    "Adam": "Adam AdamWithAmsgrad",
    "Adamax": "AdaMax",
    "Adadelta": "Adadelta",
    "Adagrad": "Adagrad AdagradV2",
    "AdagradDA": "AdagradDA",
    "AddSign": "AddSign",
    "RMSprop": "CenteredRMSProp RMSProp",
    "Ftrl": "Ftrl FtrlV2",
    "SGD": "GradientDescent KerasMomentum Momentum ProximalGradientDescent",
    "PowerSign": "PowerSign",
    "ProximalAdagrad": "ProximalAdagrad",
}
_BY_UPDATE = {op: name for name, ops in _UPDATES.items() for op in ops.split()}


@dataclass(frozen=True)
class CountedOptimizer(OptimizerCost):
    """An optimizer whose state was counted from the graph's variables."""

    slots: Mapping[str, int] = field(default_factory=dict)  # parameter: bytes
    flops: int = 0

    @property
    def is_known(self) -> bool:
        return True

    def bytes_of(self, value: Value) -> int:
        return self.slots.get(value.name, 0)

    def update_flops(self, parameters: Iterable[Value]) -> int:
        return self.flops

    @property
    def formula(self) -> str:
        if not self.name:
            return "no optimizer: the step does not train"
        return f"{self.name}: the variables beside the model's own that the graph's update writes or reads; scalars are left out"


def name_optimizer(types: Iterable[str], made: Iterable[str]) -> str:
    """Names the optimizer by its update ops, or by its class where that says more (AdamW, not Adam) or the update is in plain ops."""
    classes = [name.removesuffix("Optimizer") for name in made]
    for name in types:
        stem = _stem(name)
        if stem in _BY_UPDATE:
            found = _BY_UPDATE[stem]
            return next((each for each in classes if each.startswith(found)), found)
    return next((name for name in classes if name), "optimizer of model_fn")


def _stem(name: str) -> str:
    """'Adam' for ResourceApplyAdam; '' for an op that is no update."""
    found = re.match(r"(Resource)?(Sparse)?Apply", name)
    return name[found.end() :] if found else ""


def share_slots(
    slots: Mapping[str, tuple[tuple[int, ...], str]], parameters: Mapping[str, Value]
) -> dict[str, int]:
    """Bytes of optimizer variables by the parameter they belong to; `parameters` are by the variable's name.

    A slot's name contains its parameter's. A slot without such a name goes to a parameter of its shape, or else to the first.
    """
    shared: Counter[str] = Counter()
    turn: Counter[tuple[int, ...]] = Counter()
    for name, (shape, dtype) in slots.items():
        if not shape:
            continue
        size = ITEM_BYTES.get(dtype, 0) * math.prod(shape)
        owner = _owner(name, parameters)
        if owner is None:
            alike = [p for p, value in parameters.items() if value.shape == shape] or list(parameters)[:1]
            if not alike:
                continue
            owner = alike[turn[shape] % len(alike)]
            turn[shape] += 1
        shared[parameters[owner].name] += size
    return shared


def _owner(slot: str, parameters: Mapping[str, Value]) -> str | None:
    """The parameter whose whole name is in a slot's, the longest: dense/kernel of training/dense/kernel/m or dense/kernel_m."""
    parts = slot.split("/")
    for length in range(len(parts), 0, -1):
        for first in range(len(parts) - length + 1):
            name = "/".join(parts[first : first + length])
            while name:
                if name in parameters:
                    return name
                name = name.rpartition("_")[0] if "_" in name.rpartition("/")[2] else ""
    return None


# Operations for each element of a fused update; the same numbers as for torch's optimizers.
_FUSED = {"Adam": 13, "SGD": 2, "RMSprop": 8, "Adagrad": 6, "Adadelta": 12, "Adamax": 10, "Ftrl": 12}


def count_update(nodes: Iterable[Node], values: Any) -> int:
    """Operations of one update: for fused update ops those of their kind, for plain ops one for each element."""
    total = 0
    graph: Any = SimpleNamespace(values=values)  # all of a Graph that a count looks at
    for node in nodes:
        if node.phase != "optimizer":
            continue
        stem = _stem(node.op.removeprefix("tf."))
        if stem in _BY_UPDATE:
            sizes = [values[i].num_elements for i in node.inputs]
            total += max(sizes, default=0) * _FUSED.get(_BY_UPDATE[stem], 12)
        else:
            total += sum(flops_of_node(graph, node))
    return total
