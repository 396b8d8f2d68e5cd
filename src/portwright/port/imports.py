"""Finds the project's files that a file imports, and the imports that cannot be followed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from portwright.port.names import Names
from portwright.port.project import LIBRARIES, Project
from portwright.port.tree import Tree, is_method_call, is_name

# Calls that import by a text, with the position of the text; only literal texts are followed.
_BY_NAME = {
    "importlib.import_module": 0, "__import__": 0, "runpy.run_path": 0, "runpy.run_module": 0, "pydoc.locate": 0,
    "hydra.utils.instantiate": 0, "hydra.utils.call": 0, "hydra.utils.get_class": 0, "hydra.utils.get_method": 0,
    "importlib.util.spec_from_file_location": 1,
}  # fmt: skip


@dataclass(frozen=True)
class NotFollowed:
    """An import that leads to no file that was read."""

    line: int
    what: str
    why: str


@dataclass
class Imports:
    """The project's files that one file imports, and the imports that could not be followed."""

    files: set[Path] = field(default_factory=set)
    not_followed: list[NotFollowed] = field(default_factory=list)


def read_imports(path: Path, tree: Tree, names: Names, project: Project) -> Imports:
    """Reads all imports of a file, also those inside functions and those by a literal text."""
    return _Reader(path, tree, names, project).read()


class _Reader:
    def __init__(self, path: Path, tree: Tree, names: Names, project: Project) -> None:
        self.path, self.tree, self.names, self.project = path, tree, names, project
        self.found = Imports()

    def read(self) -> Imports:
        for node in self.tree.all(ast.Import):
            for alias in node.names:
                self._follow(node, alias.name, 0)
        for each in self.tree.all(ast.ImportFrom):
            self._follow(each, each.module or "", each.level, [a.name for a in each.names if a.name != "*"])
        for call in self.tree.all(ast.Call):
            called = "__import__" if is_name(call.func, "__import__") else self.names.resolve(call.func)
            if called in _BY_NAME:
                self._follow_text(call, call.args[_BY_NAME[called] :], called)
            elif is_name(call.func, "exec"):  # exec(open("settings.py").read()), or exec of a computed text
                texts = [
                    n for n in ast.walk(call) if isinstance(n, ast.Constant) and str(n.value).endswith(".py")
                ]
                self._follow_text(call, texts or call.args, "exec")
        self.found.not_followed.sort(key=lambda n: n.line)
        return self.found

    def _follow(self, node: ast.AST, dotted: str, level: int, below: Sequence[str] = ()) -> None:
        """Adds the files of a module and of its submodules `below`."""
        every = [dotted, *(f"{dotted}.{name}".lstrip(".") for name in below)]
        files = {m for each in every if (m := self.project.find_module(self.path, each, level)) is not None}
        for file in files:
            self.found.files.update([file, *_packages_above(file, self.project.root)])
        if files or _is_optional(self.tree, node):
            return
        top = dotted.partition(".")[0]
        above = self.project.find_module(self.path, top, 0)
        if level:
            self._skip(node, "." * level + (dotted or ", ".join(below)), "the project has no such file")
        elif above is not None and above.name == "__init__.py":
            self._skip(node, dotted, "the project has no such file")
        elif above is None and top not in LIBRARIES and self._changes_path and self._exists_nearby(top):
            self._skip(node, dotted, "sys.path is changed in this file, and leads to it")

    def _exists_nearby(self, top: str) -> bool:
        """Whether a module of this name is in the project or up to three folders above the script."""
        above = [parent / name for parent in self.path.parents[1:4] for name in (top, f"{top}.py")]
        return self.project.holds(self.path, top) or any(path.exists() for path in above)

    @cached_property
    def _changes_path(self) -> bool:
        return any(
            node.attr == "path" and self.names.resolve(node) == "sys.path"
            for node in self.tree.all(ast.Attribute)
        )

    def _follow_text(self, call: ast.Call, arguments: Sequence[ast.expr], called: str) -> None:
        given = arguments[0] if arguments else None
        if not isinstance(given, ast.Constant) or not isinstance(given.value, str):
            folder = _package_of_text(self.path, given, self.project)
            if folder is not None:  # it may be any module of the package
                self.found.files.update(folder.glob("*.py"))
                return
            text = ast.unparse(given) if given is not None else ""
            shown = f"{called.rpartition('.')[2]}({text if len(text) <= 60 else text[:57] + '...'})"
            self._skip(call, shown, "what it names is known only when it runs")
        elif given.value.endswith(".py"):
            file = self.path.parent / given.value
            if file.is_file():
                self.found.files.add(file)
            else:
                self._skip(call, given.value, "there is no such file beside this one")
        else:
            dotted = given.value.lstrip(".")
            self._follow(call, dotted, len(given.value) - len(dotted))

    def _skip(self, node: ast.AST, what: str, why: str) -> None:
        self.found.not_followed.append(NotFollowed(node.lineno, what, why))  # type: ignore[attr-defined]


def _package_of_text(path: Path, given: ast.expr | None, project: Project) -> Path | None:
    """The folder of the package `models` in f"models.{name}" or "models." + name."""
    if isinstance(given, ast.BinOp) and isinstance(given.op, (ast.Add, ast.Mod)):
        given = given.left
    if is_method_call(given, "format"):
        given = given.func.value
    if isinstance(given, ast.JoinedStr) and given.values:
        given = given.values[0]
    text = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
    package = text.rpartition(".")[0]
    if not package:
        return None
    module = project.find_module(path, package, 0)
    bare = path.parent.joinpath(*package.split("."))
    is_package = module is not None and module.name == "__init__.py"
    return module.parent if is_package else bare if bare.is_dir() else None  # type: ignore[union-attr]


def _packages_above(path: Path, root: Path) -> Iterator[Path]:
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        yield folder / "__init__.py"
        if folder == root:
            return
        folder = folder.parent


def _is_optional(tree: Tree, node: ast.AST) -> bool:
    """Whether a failing import is caught: `try: from ._version import x; except ImportError: ...`."""
    return any(isinstance(outer, ast.Try) and outer.handlers for outer in tree.ancestors(node))
