"""Layers of a TensorFlow graph: the name scopes that hold variables, as the paths that a plan shows.

TensorFlow numbers repeated layers by a suffix ('layer_0', 'layer_1' or 'block', 'block_1'); those become elements of a list
('layer.0', 'block.1'), so that a plan folds them as it folds a torch ModuleList.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_NUMBERED = re.compile(r"(?P<base>.*?[^_\d])_?(?P<number>\d+)")
_GRADIENTS = re.compile(r"^(gradients(_\d+)?|gradient_tape)/")
_SUFFIX = re.compile(r"_\d+$")


class Scopes:
    """Which layer a variable or an op belongs to, by its name."""

    def __init__(self, variables: Iterable[str]) -> None:
        self._children: dict[tuple[str, ...], set[str]] = {}
        self._owners: set[tuple[str, ...]] = set()  # scopes that hold variables directly
        for name in variables:
            parts = tuple(name.split("/")[:-1])
            self._owners.add(parts)
            for depth in range(len(parts)):
                self._children.setdefault(parts[:depth], set()).add(parts[depth])
                self._children.setdefault(parts[: depth + 1], set())
        self._paths: dict[tuple[str, ...], str] = {(): ""}
        self._of_scope: dict[str, str] = {}
        self._name_below((), "")

    @property
    def paths(self) -> list[str]:
        """The paths of all layers, an outer layer before those in it; a list of layers counts as one."""
        found: dict[str, None] = {"": None}
        for path in self._paths.values():
            parts = path.split(".")
            found.update(dict.fromkeys(".".join(parts[: i + 1]) for i in range(len(parts))))
        return list(found)

    def of_variable(self, name: str) -> str:
        return self._paths[tuple(name.split("/")[:-1])]

    def of_op(self, name: str) -> str:
        """The innermost layer whose scope holds the op; a layer's second call ('dense_1', which has no variables) counts as that layer."""
        scope = _GRADIENTS.sub("", name).rpartition("/")[0]
        if scope not in self._of_scope:
            found: tuple[str, ...] = ()
            for part in scope.split("/") if scope else ():
                below = self._children.get(found, set())
                plain = _SUFFIX.sub("", part)
                if part not in below and plain not in below:
                    break
                found = (*found, part if part in below else plain)
            while len(below := self._children.get(found, set())) == 1 and found and found not in self._owners:
                found = (*found, *below)  # a layer around one other, as an LSTM around its cell
            self._of_scope[scope] = self._paths[found]
        return self._of_scope[scope]

    def path_of(self, scope: str) -> str | None:
        """The path of a scope that holds variables, None for another."""
        return self._paths.get(tuple(scope.split("/"))) if scope else ""

    def _name_below(self, parts: tuple[str, ...], path: str) -> None:
        names = self._children.get(parts, set())
        renamed = self._listed(parts, names)
        for name in sorted(names):
            below = (*parts, name)
            self._paths[below] = ".".join(part for part in (path, renamed.get(name, name)) if part)
            self._name_below(below, self._paths[below])

    def _listed(self, parts: tuple[str, ...], names: set[str]) -> Mapping[str, str]:
        """New names for the layers that become elements of a list."""
        groups: dict[str, dict[int, str]] = {}
        for name in names:
            found = _NUMBERED.fullmatch(name)
            if found is not None:
                groups.setdefault(found["base"], {})[int(found["number"])] = name
        renamed: dict[str, str] = {}
        for base, members in groups.items():
            if base in names:
                # 'dense', 'dense_1' are single layers with automatic names: no list. Blocks of layers with such names are one.
                if not all(self._children.get((*parts, name)) for name in (base, *members.values())):
                    continue
                members = {0: base, **members}
            elif len(members) < 2:
                continue
            renamed.update({name: f"{base}.{number}" for number, name in members.items()})
        return renamed


def layer_kinds(layers: Iterable[Any], scopes: Scopes) -> dict[str, str]:
    """Class names by path, from the Keras layers that the model function called."""
    kinds: dict[str, str] = {}
    whole: dict[str, str] = {}
    for layer in layers:
        try:
            own = [*layer._trainable_weights, *layer._non_trainable_weights]
            every = layer.weights
        except (AttributeError, ValueError):  # a layer that is not built, or whose sublayers were deleted
            continue
        for weight in own:
            path = scopes.path_of(weight.name.rpartition("/")[0])
            if path:
                kinds.setdefault(path, type(layer).__name__)
        if not own and every:
            path = scopes.path_of(_shared_scope([weight.name for weight in every]))
            if path:
                whole.setdefault(path, type(layer).__name__)  # calls of inner layers end first
    kinds = {**whole, **kinds}
    paths = scopes.paths
    num_inside = Counter(path.rpartition(".")[0] for path in paths if path)
    for path in reversed(paths):  # a scope around a single layer is that layer
        around, _, last = path.rpartition(".")
        if path in kinds and around and num_inside[around] == 1 and not last.isdecimal():
            kinds.setdefault(around, kinds[path])
    return kinds


def _shared_scope(names: list[str]) -> str:
    parts = [name.split("/")[:-1] for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)
