"""The files of a project as the layout reads them: text, tree and names, with the rules' rewrites already in."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from portwright.port.names import Names
from portwright.port.project import Project, read_source
from portwright.port.source import Source, UnreadableError
from portwright.port.tree import FUNCTIONS, ClassInfo, Tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


class RefusalError(Exception):
    """The script has a shape that the layout cannot hold; nothing is written, and this is the finding."""

    def __init__(self, message: str, cure: str, unit: Unit, node: ast.AST | None = None) -> None:
        super().__init__(message)
        self.message, self.cure, self.unit, self.node = message, cure, unit, node


@dataclass(eq=False)
class Unit:
    """One parsed file."""

    path: Path
    source: Source
    project: Project

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.source.parse())

    @cached_property
    def names(self) -> Names:
        return Names(self.path, self.tree, self.project)

    def text(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def top(self, name: str) -> ast.stmt | None:
        """The function or class of that name at the top level."""
        for binding in self.tree.scope.bindings.get(name, ()):
            if isinstance(binding.node, (*FUNCTIONS, ast.ClassDef)):
                return binding.node
        return None


class Workspace:
    """Files by path, each read once."""

    def __init__(self, root: Path, overlay: Mapping[Path, Source]) -> None:
        self.project = Project(root, overlay)
        self._units: dict[Path, Unit] = {}

    def unit(self, path: Path) -> Unit:
        if path not in self._units:
            source = self.project.overlay.get(path) or read_source(path)
            self._units[path] = Unit(path, source, self.project)
        return self._units[path]

    def units(self) -> list[Unit]:
        """The files that were read so far, those that can be."""
        found = []
        for unit in self._units.values():
            with contextlib.suppress(UnreadableError):
                unit.tree  # noqa: B018
                found.append(unit)
        return found

    def definition(self, reference: str | None) -> tuple[Unit, ast.stmt] | None:
        """The project's function or class that a resolved name stands for."""
        if reference is None or "::" not in reference:
            return None
        path, _, name = reference.rpartition("::")
        try:
            unit = self.unit(Path(path))
            node = unit.top(name) if name else None
        except UnreadableError:
            return None
        return (unit, node) if node is not None else None

    def method(self, unit: Unit, info: ClassInfo, name: str) -> tuple[Unit, Function] | None:
        """A method of a class, or of the project's classes that it derives from."""
        found = info.methods.get(name)
        if isinstance(found, FUNCTIONS):
            return unit, found
        for base in unit.names.bases_of(info.node):
            above = self.definition(base)
            if above is not None and isinstance(above[1], ast.ClassDef):
                inherited = self.method(above[0], above[0].tree.classes[above[1]], name)
                if inherited is not None:
                    return inherited
        return None
