"""Finds the files of a project, and what each of them defines."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from portwright.port.files import SUFFIXES, find_files
from portwright.port.notebook import read_notebook
from portwright.port.source import Source, UnreadableError, decode, read_bytes
from portwright.port.tree import dotted_chain, words

_ROOT_SIGNS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# These names mean the libraries, even in a script inside a library's own source.
LIBRARIES = words("""
    portwright torch numpy torchvision torchaudio torchtext timm einops poptorch sambaflow tensorflow tensorflow_estimator tf_keras
    keras transformers trl peft sentence_transformers accelerate diffusers lightning lightning_fabric pytorch_lightning ignite
    deepspeed fastai skorch catalyst mmengine detectron2 ultralytics cerebras
    """)

_MAX_ASKED = 5000
_DEFINITION = re.compile(
    r"^(?:(?:async[ \t]+)?def[ \t]+(?P<function>\w+)"
    r"|class[ \t]+(?P<class>\w+)[ \t]*(?:\((?P<bases>[^()]*)\))?[ \t]*:"
    r"|from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+import[ \t]+(?:\((?P<several>[^()]*)\)|(?P<few>[\w ,]+)$)"
    r"|import[ \t]+(?P<import>[\w.]+)(?:[ \t]+as[ \t]+(?P<as>\w+))?[ \t]*(?:#.*)?$"
    r"|(?P<name>[A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=(?!=)[ \t]*(?:(?P<alias>[A-Za-z_][\w.]*)[ \t]*(?:#.*)?$)?)",
    re.MULTILINE,
)
_BASE = re.compile(r"(?:^|,)\s*([\w.]+)\s*(?=,|$)")  # not metaclass=..., not Generic[...]


@dataclass(frozen=True)
class Definition:
    """The definition of one name at a module's top level."""

    kind: str  # import, alias, class, function, other
    dotted: str = ""  # of an import or alias: the name that it refers to
    level: int = 0
    bases: tuple[str, ...] = ()
    members: frozenset[str] = frozenset()


@dataclass
class Outline:
    """The top-level names of a module."""

    path: Path
    names: dict[str, Definition] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)


def find_root(path: Path) -> Path:
    """The folder that a project's absolute imports start from, as far as known."""
    folder = path if path.is_dir() else path.parent
    return next(filter(is_marked, (folder, *folder.parents)), None) or above_packages(folder)


def above_packages(folder: Path) -> Path:
    """The folder from which a package is imported: the first one at or above it that is no package."""
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return folder


def read_source(path: Path, raw: bytes | None = None) -> Source:
    raw = read_bytes(path) if raw is None else raw
    return read_notebook(path, raw) if path.suffix == ".ipynb" else decode(path, raw)


def digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


class Project:
    """Finds the file that a name is imported from, and its definition there.

    `overlay` has rewritten texts that replace files on the disk.
    """

    def __init__(self, root: Path, overlay: Mapping[Path, Source] | None = None) -> None:
        self.root = root
        self.overlay = overlay or {}
        # files read since the last reset, with digests; None for a missing file
        self.consulted: dict[str, str | None] = {}
        self._outlines: dict[Path, Outline | None] = {}
        self._digests: dict[Path, str] = {}
        self._exists: dict[Path, bool] = {}
        self._modules: dict[tuple[Path, str, int], Path | None] = {}
        self._quick: dict[Path, dict[str, Definition]] = {}
        self._listed: list[Path] | None = None

    def forget(self, path: Path) -> None:
        """Forgets a file whose text in the overlay has changed."""
        self._outlines.pop(path, None)
        self._quick.pop(path, None)

    def find_module(self, importer: Path, dotted: str, level: int) -> Path | None:
        """The project's file of a module; None for a library's."""
        key = (importer.parent, dotted, level)
        if key not in self._modules:
            self._modules[key] = self._find_module(importer, dotted, level)
        return self._modules[key]

    def define(self, path: Path, name: str) -> Definition | None:
        """The definition of a top-level name, found without parsing the file; None if that needs a parser."""
        if path not in self._quick:
            self._quick[path] = self._scan(path)
        self.consulted[str(path)] = self._digests.get(path)
        return self._quick[path].get(name)

    def holds(self, path: Path, name: str) -> bool:
        """Whether a module or package of this name is in the project."""
        return any(each.stem == name or each.parent.name == name for each in self._files(path))

    def _files(self, path: Path) -> list[Path]:
        """The project's files; without a pyproject.toml or the like, the files in the same folder."""
        if self._listed is None:
            beside = sorted(p for p in path.parent.glob("*") if p.suffix in SUFFIXES)
            self._listed = find_files([self.root] if is_marked(self.root) else beside)[:_MAX_ASKED]
        return self._listed

    def _find_module(self, importer: Path, dotted: str, level: int) -> Path | None:
        parts = dotted.split(".") if dotted else []
        if level == 0 and parts and (parts[0] in LIBRARIES or parts[0] in sys.stdlib_module_names):
            return None
        for folder in self.folders(importer, level):
            base = folder.joinpath(*parts)
            modules = [base.with_name(base.name + ".py")] if parts else []
            for candidate in (*modules, base / "__init__.py"):
                if self._is_file(candidate):
                    return candidate
        return None

    def outline(self, path: Path) -> Outline | None:
        """The outline of a file; None if it cannot be read, which its own check reports."""
        if path not in self._outlines:
            self._outlines[path] = self._make_outline(path)
        self.consulted[str(path)] = self._digests.get(path)
        return self._outlines[path]

    def folders(self, importer: Path, level: int = 0) -> Iterator[Path]:
        """Folders from which an import in this file may start, the nearest first."""
        folder = importer.parent
        if level:
            above = [folder, *folder.parents]
            yield above[min(level, len(above)) - 1]
            return
        yield folder
        # An environment inside the project is not the project.
        while folder not in (self.root, folder.parent) and self.root in folder.parents:
            folder = folder.parent
            if folder.name in ("site-packages", "dist-packages"):
                return
            yield folder
        if self.root / "src" != importer.parent:
            yield self.root / "src"

    def _is_file(self, path: Path) -> bool:
        if path not in self._exists:
            try:
                self._exists[path] = path in self.overlay or path.is_file()
            except OSError:
                self._exists[path] = False
        if not self._exists[path]:
            self.consulted[str(path)] = None  # if it appears, cached findings are stale
        return self._exists[path]

    def _read(self, path: Path) -> Source:
        source = self.overlay.get(path)
        if source is None:
            raw = read_bytes(path)
            self._digests[path] = digest(raw)
            source = read_source(path, raw)
        return source

    def _make_outline(self, path: Path) -> Outline | None:
        try:
            return make_outline(path, self._read(path).parse())
        except UnreadableError:
            return None

    def _scan(self, path: Path) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        try:
            text = self._read(path).text
        except UnreadableError:
            return found
        for match in _DEFINITION.finditer(text):
            if match["function"]:
                found[match["function"]] = Definition("function")
            elif match["class"]:
                bases = tuple(_BASE.findall(match["bases"] or ""))
                found[match["class"]] = Definition("class", bases=bases)
            elif match["name"]:
                kind = "alias" if match["alias"] else "other"
                found.setdefault(match["name"], Definition(kind, match["alias"] or ""))
            elif match["import"]:
                top = match["import"].partition(".")[0]
                found.setdefault(
                    match["as"] or top, Definition("import", match["import"] if match["as"] else top)
                )
            else:
                listed = re.sub(r"#.*", "", match["several"] or match["few"] or "")
                for part in listed.split(","):
                    name, _, bound = part.strip().partition(" as ")
                    dotted = f"{match['module']}.{name}" if match["module"] else name
                    found.setdefault(bound.strip() or name, Definition("import", dotted, len(match["dots"])))
        return found


def make_outline(path: Path, module: ast.Module) -> Outline:
    outline = Outline(path)
    for statement in _top_level(module.body):
        _note(outline, statement)
    return outline


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        for block in blocks:
            yield from _top_level(block)


def _note(outline: Outline, statement: ast.stmt) -> None:
    names = outline.names
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            bound = alias.asname or alias.name.partition(".")[0]
            names.setdefault(bound, Definition("import", alias.name if alias.asname else bound))
    elif isinstance(statement, ast.ImportFrom):
        base = statement.module or ""
        for alias in statement.names:
            if alias.name == "*":
                outline.stars.append((base, statement.level))
            else:
                dotted = f"{base}.{alias.name}" if base else alias.name
                names.setdefault(alias.asname or alias.name, Definition("import", dotted, statement.level))
    elif isinstance(statement, ast.ClassDef):
        bases = tuple(filter(None, map(_dotted, statement.bases)))
        names[statement.name] = Definition("class", bases=bases, members=frozenset(_members(statement)))
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names[statement.name] = Definition("function")
    elif isinstance(statement, ast.Assign):
        dotted = _dotted(statement.value)
        for target in statement.targets:
            if isinstance(target, ast.Name):
                names.setdefault(target.id, Definition("alias" if dotted else "other", dotted))


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; empty for anything else."""
    chain = dotted_chain(node)
    return ".".join([chain[0].id, *chain[1]]) if chain else ""


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in _top_level(node.body):
        match statement:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Assign(targets):
                leaves = (leaf for target in targets for leaf in ast.walk(target))
                yield from (leaf.id for leaf in leaves if isinstance(leaf, ast.Name))
            case ast.AnnAssign(ast.Name(name)):
                yield name


def group_by_root(files: Sequence[Path]) -> dict[Path, list[Path]]:
    """The files by the folder that their project's absolute imports start from.

    Without a pyproject.toml or the like, a package belongs to the folder above it, and a folder to the topmost one above it
    in which a file was named too.
    """
    folders = {path.parent for path in files}
    roots = {folder: _root(folder, folders) for folder in folders}
    grouped: dict[Path, list[Path]] = {}
    for path in files:
        grouped.setdefault(roots[path.parent], []).append(path)
    return grouped


def is_marked(folder: Path) -> bool:
    """Whether a folder has a pyproject.toml or the like, and so is the root of a project."""
    return any((folder / sign).exists() for sign in _ROOT_SIGNS)


def _root(folder: Path, named: set[Path]) -> Path:
    root = find_root(folder)
    if is_marked(root):
        return root
    while True:
        above = [parent for parent in folder.parents if parent in named]
        if above:
            folder = above[-1]
        elif (folder / "__init__.py").is_file() and folder.parent != folder:
            folder = folder.parent
        else:
            return folder
