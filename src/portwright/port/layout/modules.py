"""Modules of the project that the layout takes along: copied under names that do not hide its own files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from portwright.port.finding import Edit
from portwright.port.imports import read_imports
from portwright.port.layout.definitions import OWN_FILES, Definitions
from portwright.port.layout.units import Unit, Workspace
from portwright.port.source import Source, UnreadableError


def imported_modules(workspace: Workspace, entry: Unit) -> dict[Path, str]:
    """The project's modules that a script reaches, each with the dotted name that it has in the layout."""
    found: dict[Path, str] = {}
    waiting = [(entry, _package_of(entry.path))]
    while waiting:
        unit, package = waiting.pop()
        for path, dotted in _imports(workspace, unit, package):
            if path in found or (path == entry.path and unit is entry):
                continue
            found[path] = _free_name(dotted)
            try:
                workspace.unit(path).tree  # noqa: B018
            except UnreadableError:
                continue  # it is copied as it is
            waiting.append(
                (workspace.unit(path), dotted if path.name == "__init__.py" else dotted.rpartition(".")[0])
            )
    return found


def reached_modules(workspace: Workspace, moved: dict[Path, str], texts: Iterable[str | bytes]) -> list[Path]:
    """Those of the modules that these texts import, with the packages above them and what they import in turn."""
    words = {word for text in texts for word in _imported_words(ast.parse(text))}
    found: set[Path] = set()
    waiting = [path for path, dotted in moved.items() if any(_is_reached(dotted, word) for word in words)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        package = moved[path] if path.name == "__init__.py" else moved[path].rpartition(".")[0]
        try:
            waiting += [
                each for each, _ in _imports(workspace, workspace.unit(path), package) if each in moved
            ]
        except UnreadableError:
            continue
    return [path for path in moved if path in found]


def _is_reached(dotted: str, word: str) -> bool:
    """Whether an import of `word` runs a module; one that ends in a dot is the known part of a text, and may be any below it."""
    return f"{word}.".startswith(f"{dotted}.") or (word.endswith(".") and dotted.startswith(word))


def _imported_words(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (
                n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            )
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _package_of(path: Path) -> str:
    """The package that a script is a part of, as in `python -m package.train`."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _free_name(dotted: str) -> str:
    head = dotted.partition(".")[0]
    if head in OWN_FILES or head == "configs":
        return f"script_{dotted}"
    return dotted


def _imports(workspace: Workspace, unit: Unit, package: str) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []

    def add(dotted: str, level: int) -> None:
        path = workspace.project.find_module(unit.path, dotted, level)
        if path is None:
            return
        if level:
            base = package.split(".") if package else []
            base = base[: len(base) - (level - 1)] if level > 1 else base
            name = ".".join([*base, *(dotted.split(".") if dotted else [])])
        else:
            name = dotted
        if not name:  # from . import x, in a script that is no package's part
            return
        found.append((path, name))
        folder = path.parent.parent if path.name == "__init__.py" else path.parent
        parts = name.split(".")
        for count in range(len(parts) - 1, 0, -1):  # the packages above it
            if (folder / "__init__.py").is_file():
                found.append((folder / "__init__.py", ".".join(parts[:count])))
            folder = folder.parent

    for node in ast.walk(unit.tree.module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, 0)
        elif isinstance(node, ast.ImportFrom):
            add(node.module or "", node.level)
            for alias in node.names:
                if alias.name != "*":
                    add(f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
    named = read_imports(unit.path, unit.tree, unit.names, workspace.project).files - {
        path for path, _ in found
    }
    for path in sorted(named):  # by a text that is written out
        folder = next((f for f in workspace.project.folders(unit.path) if f in path.parents), None)
        if folder is not None:
            parts = path.relative_to(folder).with_suffix("").parts
            found.append((path, ".".join(parts[:-1] if path.name == "__init__.py" else parts)))
    return found


def copied(definitions: Definitions, unit: Unit, dotted: str) -> tuple[str, Source]:
    """A module's path in the layout, and its text with imports of renamed modules put right."""
    is_package = unit.path.name == "__init__.py"
    path = dotted.replace(".", "/") + ("/__init__.py" if is_package else ".py")
    edits: list[Edit] = []
    try:
        nodes = list(ast.walk(unit.tree.module))
    except UnreadableError:
        return path, unit.source
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            name = definitions.module_name(unit, node.module, 0)
            if name != node.module:
                start, _ = unit.source.span(node)
                at = unit.source.data.index(node.module.encode(), start)
                edits.append(Edit(at, at + len(node.module.encode()), name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = definitions.module_name(unit, alias.name, 0)
                if name != alias.name:
                    start, end = unit.source.span(alias)
                    bound = alias.asname or alias.name
                    edits.append(Edit(start, end, f"{name} as {bound}"))
    return path, unit.source.with_edits(edits)
