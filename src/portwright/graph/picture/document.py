"""A plan's JSON document as what is drawn of it.

The document may come from another version or another hand: what is missing or of a wrong type is left out of the drawing,
and only something that is no plan at all is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from portwright.errors import UserError
from portwright.graph.picture.text import clean, number

PARTS = ("weights", "weight_copies", "gradients", "optimizer", "activations", "inputs")
_SIGNS_OF_A_PLAN = frozenset({"target", "layers", "supported", "machine", "ops", "memory_bytes"})
_CURE = "Give it what `portwright plan ... --json` prints."
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Box:
    """Cores of a layer on the fabric."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layer:
    index: int
    name: str
    path: str
    kind: str
    parameters: float
    forward: float  # operations a sample
    backward: float
    share_of_work: float
    memory: Mapping[str, float]  # by part
    live_forward: float
    live_backward: float
    cores: float | None
    share_of_fabric: float | None
    box: Box | None
    stage: int | None
    refused: int

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Equal for layers that a reader need not see twice."""
        return (
            _DIGITS.sub("#", self.path or self.name),
            self.kind,
            self.parameters,
            self.forward,
            self.backward,
            tuple(self.memory.items()),
            self.refused,
            self.stage,
        )


@dataclass(frozen=True)
class Group:
    """Layers that follow one another and are alike; most have one."""

    index: int
    layers: tuple[Layer, ...]

    @property
    def first(self) -> Layer:
        return self.layers[0]

    @property
    def name(self) -> str:
        """`blocks.0` to `blocks.95` as blocks.0–95."""
        first, last = self.layers[0].name, self.layers[-1].name
        if len(self.layers) == 1:
            return first
        differing = [
            (a, b)
            for a, b in zip(_DIGITS.finditer(first), _DIGITS.finditer(last), strict=False)
            if a[0] != b[0]
        ]
        if len(differing) != 1:
            return f"{first} … {last}"
        a, b = differing[0]
        return f"{first[: a.start()]}{a[0]}–{b[0]}{first[a.end() :]}"


@dataclass(frozen=True)
class Drawing:
    """One target's plan, with the number that its anchors carry."""

    index: int
    plan: Mapping[str, Any]
    name: str  # of the target

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        layers = [_read_layer(i, entry) for i, entry in enumerate(mappings(self.plan.get("layers")))]
        refused = self._refused_by_path({layer.path for layer in layers if layer.path})
        return tuple(
            replace(layer, refused=max(layer.refused, refused.get(layer.path, 0))) for layer in layers
        )

    def _refused_by_path(self, paths: set[str]) -> Counter[str]:
        """Refusals by layer: a plan counts ops in its layers, and not what was refused while the step was captured."""
        found: Counter[str] = Counter()
        for entry in mappings(self.plan.get("refused")):
            modules = (entry.get("module"), *entries(entry.get("repeats")))
            found.update({holder_of(module, paths) for module in modules if isinstance(module, str)} - {""})
        return found

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        runs: list[list[Layer]] = []
        for layer in self.layers:
            if runs and runs[-1][0].likeness == layer.likeness:
                runs[-1].append(layer)
            else:
                runs.append([layer])
        return tuple(Group(i, tuple(run)) for i, run in enumerate(runs))

    @cached_property
    def group_of(self) -> Mapping[int, Group]:
        return {layer.index: group for group in self.groups for layer in group.layers}

    @cached_property
    def group_of_path(self) -> Mapping[str, Group]:
        return {layer.path: group for group in self.groups for layer in group.layers if layer.path}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers, those with the most work first."""
        work: dict[str, float] = {}
        for layer in self.layers:
            work[layer.kind] = work.get(layer.kind, 0.0) + layer.share_of_work
        return tuple(sorted(work, key=lambda kind: -work[kind]))

    @cached_property
    def fabric(self) -> tuple[float, float] | None:
        fabric = mapping(self.plan.get("fabric"))
        columns, rows = number(fabric.get("columns")), number(fabric.get("rows"))
        return (columns, rows) if columns and rows and columns > 0 and rows > 0 else None

    @cached_property
    def is_placed(self) -> bool:
        return self.fabric is not None and any(layer.box for layer in self.layers)

    @property
    def stages(self) -> list[Mapping[str, Any]]:
        return mappings(self.plan.get("stages"))

    @property
    def memory(self) -> Mapping[str, float]:
        return amounts(self.plan.get("memory_bytes"), (*PARTS, "saved_activations", "peak"))

    @property
    def machine(self) -> Mapping[str, Any]:
        return mapping(self.plan.get("machine"))

    def word(self, key: str) -> str:
        value = self.plan.get(key)
        return clean(value) if isinstance(value, str) else ""

    def words(self, key: str) -> list[str]:
        return [clean(v) for v in entries(self.plan.get(key)) if isinstance(v, str) and v.strip()]

    def number(self, key: str) -> float | None:
        return number(self.plan.get(key))

    def interval(self, name: str) -> tuple[float, float] | None:
        return read_interval(mapping(mapping(self.plan.get("estimates")).get(name)))

    def anchor(self, group: Group) -> str:
        return f"t{self.index}-layer-{group.index}"


def read_document(document: Any) -> list[Drawing]:
    """One drawing a target, of the document of one target or of several."""
    if not isinstance(document, Mapping):
        raise UserError(f"A plan is a JSON object, and this is {type(document).__name__}.", _CURE)
    several = document.get("targets")
    if isinstance(several, Mapping) and several:
        for name, plan in several.items():
            if not isinstance(plan, Mapping):
                raise UserError(
                    f"The plan for target '{name}' is {type(plan).__name__}, not an object.", _CURE
                )
        return [Drawing(i, plan, clean(name)) for i, (name, plan) in enumerate(several.items())]
    if not _SIGNS_OF_A_PLAN & document.keys():
        keys = ", ".join(sorted(map(str, document))[:8]) or "none"
        raise UserError(f"This is not a plan: it has none of a plan's keys, but {keys}.", _CURE)
    name = document.get("target")
    return [Drawing(0, document, clean(name) if isinstance(name, str) and name else "target")]


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def holder_of(module: str, paths: Container[str]) -> str:
    """The path of the layer that a module is, or is in; '' where it is in none."""
    path = clean(module)
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path


def entries(value: Any) -> list[Any]:
    """What a JSON array holds; nothing of anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def mappings(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in entries(value) if isinstance(entry, Mapping)]


def amounts(value: Any, keys: Sequence[str]) -> dict[str, float]:
    """The numbers under these keys that are there and not below nothing."""
    found = {key: number(mapping(value).get(key)) for key in keys}
    return {key: amount for key, amount in found.items() if amount is not None and amount >= 0}


def read_interval(estimate: Mapping[str, Any]) -> tuple[float, float] | None:
    ends = [number(end) for end in entries(estimate.get("interval"))]
    if len(ends) != 2:
        return None
    low, high = ends
    return (low, high) if low is not None and high is not None else None


def _read_layer(index: int, entry: Mapping[str, Any]) -> Layer:
    flops = mapping(entry.get("flops_per_sample"))
    live = mapping(entry.get("live_bytes"))
    stage = number(entry.get("stage"))
    path = entry.get("path")
    name = entry.get("name") or path
    kind = entry.get("kind")
    return Layer(
        index=index,
        name=clean(name) if isinstance(name, str) and name else f"layer {index}",
        path=clean(path) if isinstance(path, str) else "",
        kind=clean(kind) if isinstance(kind, str) else "",
        parameters=_amount(entry.get("parameters")),
        forward=_amount(flops.get("forward")),
        backward=_amount(flops.get("backward")),
        share_of_work=_amount(entry.get("share_of_work")),
        memory=amounts(entry.get("memory_bytes"), PARTS),
        live_forward=_amount(live.get("forward")),
        live_backward=_amount(live.get("backward")),
        cores=number(entry.get("cores")),
        share_of_fabric=number(entry.get("share_of_fabric")),
        box=_read_box(entry.get("rectangle")),
        stage=int(stage) if stage is not None else None,
        refused=int(_amount(entry.get("refused"))),
    )


def _amount(value: Any) -> float:
    return max(number(value) or 0.0, 0.0)


def _read_box(value: Any) -> Box | None:
    sides = amounts(value, ("x", "y", "width", "height"))
    if len(sides) < 4 or sides["width"] <= 0 or sides["height"] <= 0:
        return None
    return Box(**sides)
