"""What is drawn of a plan's JSON document: layers, groups of equal layers, and kinds with their colours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from portwright.report import words

Json = Mapping[str, Any]

NOT_THE_VENDORS = "Estimated by portwright, not the vendor's output."
_COLOURS = 7  # for kinds in drawing.css; further kinds share one more
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """Consecutive layers that are alike; most groups have one layer."""

    anchor: str
    layers: tuple[Json, ...]

    @property
    def first(self) -> Json:
        return self.layers[0]

    @property
    def name(self) -> str:
        """`blocks.0` to `blocks.95` as blocks.0–95."""
        first, last = self.layers[0]["name"], self.layers[-1]["name"]
        pairs = zip(_DIGITS.finditer(first), _DIGITS.finditer(last), strict=False)
        differing = [(a, b) for a, b in pairs if a[0] != b[0]]
        if len(differing) == 1:
            a, b = differing[0]
            return f"{first[: a.start()]}{a[0]}–{b[0]}{first[a.end() :]}"
        return first if first == last else f"{first} … {last}"

    @property
    def work(self) -> float:
        return float(sum(layer["share_of_work"] for layer in self.layers))


@dataclass(frozen=True)
class Drawing:
    """One target's plan, with the number that its anchors carry."""

    index: int
    name: str  # of the target
    plan: Json

    @cached_property
    def layers(self) -> list[Json]:
        """The plan's layers, each with the sum of its bytes and with the refusals of the capture."""
        plan, refused = self.plan, Counter[str]()
        paths = {layer["path"] for layer in plan["layers"]}
        for entry in plan["refused"]:
            modules = (entry["module"], *entry["repeats"])
            refused.update(path for module in modules if (path := _holder_of(module, paths)))
        return [
            {
                **layer,
                "index": i,
                "bytes": sum(layer["memory_bytes"].values()),
                "refused": max(layer["refused"], refused[layer["path"]]),
            }
            for i, layer in enumerate(plan["layers"])
        ]

    @cached_property
    def groups(self) -> list[Group]:
        alike = [tuple(run) for _, run in groupby(self.layers, _likeness)]
        return [Group(f"t{self.index}-layer-{i}", layers) for i, layers in enumerate(alike)]

    @cached_property
    def group_of(self) -> Mapping[int, Group]:
        return {layer["index"]: group for group in self.groups for layer in group.layers}

    @cached_property
    def _group_of_path(self) -> Mapping[str, Group]:
        return {layer["path"]: group for group in self.groups for layer in group.layers if layer["path"]}

    def group_of_module(self, module: str) -> Group | None:
        return self._group_of_path.get(_holder_of(module, self._group_of_path))

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Kinds of layers, those with the most work first, each with its CSS class."""
        work: Counter[str] = Counter()
        for layer in self.layers:
            work[layer["kind"]] += layer["share_of_work"]
        return {kind: f"kind-{min(i, _COLOURS)}" for i, (kind, _) in enumerate(work.most_common())}

    def style_of(self, layer: Json) -> str:
        """The CSS classes of a layer."""
        return f"layer {self.kinds[layer['kind']]}{' refused-layer' if layer['refused'] else ''}"

    @property
    def is_placed(self) -> bool:
        return any(layer["rectangle"] for layer in self.layers)

    @property
    def holder(self) -> str:
        """The word for what holds a stage: a process where Portwright runs the pipeline, a chip where the vendor does."""
        return "process" if self.plan["execution"] else "chip"

    @property
    def need(self) -> str:
        """What the step needs, in the plan's own words, and as a share of what there is."""
        why, capacity = self.plan["why_fits"], self.plan["capacity_bytes"]
        share = f" {words.share(self.plan['needed_bytes'] / capacity)} of the capacity." if capacity else ""
        return f"{why[:1].upper()}{why[1:]}.{share}"

    @property
    def places(self) -> tuple[str, str]:
        """Title of the drawing of places; what it shows, and what it does not."""
        machine, execution = self.plan["machine"]["name"], self.plan["execution"]
        if self.is_placed:
            columns, rows = self.plan["fabric"]["columns"], self.plan["fabric"]["rows"]
            used = sum(layer["rectangle"]["width"] * layer["rectangle"]["height"] for layer in self.layers)
            return f"Layers on the fabric of {machine}", (
                f"{columns} × {rows} usable cores, {words.share(used / (columns * rows))} of them in rectangles. "
                "Areas are to scale; the vendor's compiler chooses its own places and shapes."
            )
        if self.plan["stages"]:
            each, share, whose = (
                ("process with a device of its own", "work", "runconfig.pipeline.cuts sets other cuts")
                if execution
                else ("chip", "chip's tiles", "The vendor's compiler chooses its own split")
            )
            told = (
                f"Each row is one {each}; a piece is a layer, as wide as its share of the {share}. {whose}."
            )
            return f"Pipeline stages on {machine}", told
        if self.plan["mode"] == "weight_streaming":
            return f"Layers streamed through {machine}", (
                f"In weight streaming no layer has a place of its own: weights pass through the "
                f"{'device' if execution else 'chip'}, layer after layer, forward from left to right and backward from "
                "right to left. A piece is a layer."
            )
        told = "All layers share this machine's memory and run one after another, from left to right; nothing is placed."
        return f"Layers on {machine}", told


def read_document(document: Json) -> list[Drawing]:
    """One drawing a target, of the document of one target or of several."""
    plans = document.get("targets") or {document["target"]: document}
    return [Drawing(i, name, plan) for i, (name, plan) in enumerate(plans.items())]


def describe(layer: Json) -> str:
    """The tooltip of a layer."""
    lines = [f"{layer['name']} ({layer['kind']})" if layer["kind"] else layer["name"]]
    if layer["cores"] is not None:
        share = f", {words.share(layer['share_of_fabric'])} of the fabric" if layer["share_of_fabric"] else ""
        lines.append(words.several(layer["cores"], "core") + share)
    if box := layer["rectangle"]:
        right, bottom = box["x"] + box["width"] - 1, box["y"] + box["height"] - 1
        lines.append(f"columns {box['x']} to {right}, rows {box['y']} to {bottom}")
    work, parameters = words.share(layer["share_of_work"]), words.number(layer["parameters"])
    lines += [f"{work} of the work, {parameters} parameters", f"{words.size(layer['bytes'])} in all"]
    return "\n".join([*lines, f"refused: {layer['refused']}"] if layer["refused"] else lines)


def _likeness(layer: Json) -> tuple[Any, ...]:
    """A key that is equal for layers that a reader need not see twice."""
    same = ("kind", "parameters", "flops_per_sample", "memory_bytes", "refused", "stage")
    return (_DIGITS.sub("#", layer["path"] or layer["name"]), *(layer[key] for key in same))


def _holder_of(module: str, paths: Container[str]) -> str:
    """The path of the layer that a module is, or is in; '' where it is in none."""
    while module and module not in paths:
        module = module.rpartition(".")[0]
    return module
