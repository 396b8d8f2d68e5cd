"""The files of a project, and what each of them defines for the others."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from portwright.errors import UserError
from portwright.port.files import SUFFIXES, find_files
from portwright.port.notebook import read_notebook
from portwright.port.source import Source, UnreadableError, decode, read_bytes
from portwright.port.tree import dotted_chain

_ROOT_SIGNS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# Their names mean the libraries themselves, even to a script that stands inside of one.
_LIBRARIES = frozenset(
    {
        "portwright",
        "torch",
        "numpy",
        "torchvision",
        "torchaudio",
        "torchtext",
        "timm",
        "einops",
        "poptorch",
        "sambaflow",
        "tensorflow",
        "tensorflow_estimator",
        "tf_keras",
        "keras",
    }
)

_MAX_ASKED = 5000
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+import[ \t]+(?P<names>\([^()]*\)|[^\n]*)"
    r"|import[ \t]+(?P<import>[\w.]+))",
    re.MULTILINE,
)

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
    """What a module's top level says of one name."""

    kind: str  # import, alias, class, function, other
    dotted: str = ""  # of an import or alias: what it stands for
    level: int = 0
    bases: tuple[str, ...] = ()
    members: frozenset[str] = frozenset()


@dataclass
class Outline:
    """A module as other modules see it."""

    path: Path
    names: dict[str, Definition] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)


def find_root(path: Path) -> Path:
    """The folder that a project's absolute imports start from, as well as one can tell."""
    folder = path if path.is_dir() else path.parent
    for candidate in (folder, *folder.parents):
        if any((candidate / sign).exists() for sign in _ROOT_SIGNS):
            return candidate
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent  # a package is imported by its name, from the folder above it
    return folder


def read_source(path: Path, raw: bytes | None = None) -> Source:
    raw = read_bytes(path) if raw is None else raw
    return read_notebook(path, raw) if path.suffix == ".ipynb" else decode(path, raw)


def digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


class Project:
    """Answers which file a name is imported from, and what that file says of it.

    `overlay` holds rewritten texts that stand for what is on the disk.
    """

    def __init__(self, root: Path, overlay: Mapping[Path, Source] | None = None) -> None:
        self.root = root
        self.overlay = overlay or {}
        self.consulted: dict[
            str, str | None
        ] = {}  # since the last reset: files, and the digest of what they held
        self._outlines: dict[Path, Outline | None] = {}
        self._digests: dict[Path, str] = {}
        self._exists: dict[Path, bool] = {}
        self._modules: dict[tuple[Path, str, int], Path | None] = {}
        self._quick: dict[Path, dict[str, Definition]] = {}
        self._listed: list[Path] | None = None

    def forget(self, path: Path) -> None:
        """Looks at a file anew; its text in the overlay has changed."""
        self._outlines.pop(path, None)
        self._quick.pop(path, None)

    def find_module(self, importer: Path, dotted: str, level: int) -> Path | None:
        """The project's file for a module; None for a library's."""
        key = (importer.parent, dotted, level)
        if key not in self._modules:
            self._modules[key] = self._find_module(importer, dotted, level)
        return self._modules[key]

    def define(self, path: Path, name: str) -> Definition | None:
        """What the top level of a file says of a name, found without parsing it; None where that takes a parser."""
        if path not in self._quick:
            self._quick[path] = self._scan(path)
        self.consulted[str(path)] = self._digests.get(path)
        return self._quick[path].get(name)

    def is_used_elsewhere(self, path: Path, name: str, pattern: str = "") -> bool:
        """Whether another file of the project imports a file, names what it defines, and contains a pattern; True where
        there are too many files to look at."""
        named = re.compile(rb"\b" + re.escape(name).encode() + rb"\b")
        wanted = re.compile(pattern.encode())
        try:
            others = self._files(path)
        except UserError:
            return True
        for other in others:
            if other == path:
                continue
            try:
                source = self._read(other)
            except UnreadableError:
                continue
            self.consulted[str(other)] = self._digests.get(other)
            found = named.search(source.data) and wanted.search(source.data)
            if found and self._imports(other, source.text, path):
                return True
        return len(others) >= _MAX_ASKED

    def _imports(self, importer: Path, text: str, path: Path) -> bool:
        for match in _IMPORT.finditer(text):
            dotted, level = match["module"] or match["import"] or "", len(match["dots"] or "")
            names = [dotted, *(f"{dotted}.{n}".lstrip(".") for n in re.findall(r"\w+", match["names"] or ""))]
            if any(self.find_module(importer, name, level) == path for name in names):
                return True
        return False

    def _files(self, path: Path) -> list[Path]:
        """The project's files; without a sign of where it begins, those beside a file."""
        if self._listed is None:
            has_signs = any((self.root / sign).exists() for sign in _ROOT_SIGNS)
            beside = sorted(p for p in path.parent.glob("*") if p.suffix in SUFFIXES)
            self._listed = find_files([self.root] if has_signs else beside)[:_MAX_ASKED]
        return self._listed

    def _find_module(self, importer: Path, dotted: str, level: int) -> Path | None:
        parts = dotted.split(".") if dotted else []
        if level == 0 and parts and (parts[0] in _LIBRARIES or parts[0] in sys.stdlib_module_names):
            return None
        for folder in self._folders(importer, level):
            base = folder.joinpath(*parts)
            candidates = (
                [base / "__init__.py"]
                if not parts
                else [base.with_name(base.name + ".py"), base / "__init__.py"]
            )
            for candidate in candidates:
                if self._is_file(candidate):
                    return candidate
        return None

    def outline(self, path: Path) -> Outline | None:
        """None where the file cannot be read; its own check says so."""
        if path not in self._outlines:
            self._outlines[path] = self._make_outline(path)
        self.consulted[str(path)] = self._digests.get(path)
        return self._outlines[path]

    def _folders(self, importer: Path, level: int) -> Iterator[Path]:
        folder = importer.parent
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            yield folder
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
                self._exists[path] = path.is_file()
            except OSError:
                self._exists[path] = False
        if not self._exists[path]:
            self.consulted[str(path)] = None  # should it appear, what was found without it is stale
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
        bases = tuple(
            ".".join([chain[0].id, *chain[1]]) for chain in map(dotted_chain, statement.bases) if chain
        )
        names[statement.name] = Definition("class", bases=bases, members=frozenset(_members(statement)))
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        names[statement.name] = Definition("function")
    elif isinstance(statement, ast.Assign):
        chain = dotted_chain(statement.value)
        for target in statement.targets:
            if isinstance(target, ast.Name):
                dotted = ".".join([chain[0].id, *chain[1]]) if chain else ""
                names.setdefault(target.id, Definition("alias" if chain else "other", dotted))


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in _top_level(node.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
