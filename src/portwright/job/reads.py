"""Whether the user's code reads a key that -D sets: what nothing reads has no effect, and is an error."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.params import USER_SECTIONS, Params

_READERS = ("get", "pop", "setdefault")
_TAKES_NO_KEY = ("print", "isinstance", "PyTorchBaseModel")
_RUN_KEYS = ("mixed_precision", "fp16_type", "to_float16", "allow_multireplica")  # run() reads them in model


def check_overrides(params: Params, functions: Iterable[Callable[..., Any] | None], folder: Path) -> None:
    """An error for a key of the user's own sections that no file reads. A section that is passed on as a whole is not checked."""
    asked = [o for o in params.overrides if o.path[0] in USER_SECTIONS and o.path[0] not in params.sections]
    given = [f for f in functions if f is not None]
    files = _files(given, folder) if asked else None
    if files is None:
        return
    read = _ReadKeys(files, {name for f in given for name in [*inspect.signature(f).parameters][:1]})
    for override in asked:
        section, key = override.path[0], override.path[1]
        if not read.is_complete or section in read.whole or key in read.keys[section] | read.keys[""]:
            continue
        known = sorted(read.keys[section], key=str)
        raise UserError(
            f"{override.text}: nothing reads the key '{key}' of {section}, so it would change nothing.",
            suggest(str(key), map(str, known)) if known else f"No key of {section} is read.",
        )


def _files(functions: list[Callable[..., Any]], folder: Path) -> list[ast.Module] | None:
    """The syntax trees of the user's imported code; None where a part is an installed library or has no file."""
    folders = {folder.resolve()}
    for function in functions:
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        if file is None or _is_installed(Path(file)):
            return None
        folders.add(Path(file).resolve().parent)
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = [Path(name).resolve() for name in names if name]
    paths = {p for p in found if p.is_file() and not _is_installed(p) and folders & set(p.parents)}
    try:
        return [ast.parse(path.read_bytes()) for path in sorted(paths)]
    except (SyntaxError, ValueError, OSError):
        return None


def _is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed library, to Python or to Portwright."""
    return "site-packages" in path.parts or bool(
        {Path(os.__file__).parent, Path(__file__).parents[1]} & set(path.parents)
    )


class _ReadKeys:
    """The keys that some code reads, by section; "" has those read from a mapping that may be any section."""

    def __init__(self, files: list[ast.Module], params: set[str]) -> None:
        """`params` are names of the whole params, such as the first parameters of the functions that run() calls."""
        self.keys: dict[str, set[object]] = {name: set() for name in (*USER_SECTIONS, "")}
        self.keys["model"].update(_RUN_KEYS)
        self.whole: set[str] = set()
        self.is_complete = True  # whether all code that gets params is read here
        own = {n.name for f in files for n in ast.walk(f) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        for file in files:
            self._parents = {child: n for n in ast.walk(file) for child in ast.iter_child_nodes(n)}
            names: dict[str, set[str]] = {}  # the sections that each name may hold, and "" for anything else
            for node in ast.walk(file):
                if isinstance(getattr(node, "ctx", None), ast.Store):
                    value = getattr(self._parents[node], "value", None)
                    names.setdefault(_name(node), set()).add("" if value is None else self._bound(value))
                elif isinstance(node, ast.arg):
                    names.setdefault(node.arg, set()).add("")
            spaces = (
                params
                | {"params"}
                | {_name(o) for n in ast.walk(file) for o, k in _lookups(n) if k in USER_SECTIONS}
            )
            for node in ast.walk(file):
                for owner, key in _lookups(node):
                    for section in self._sections(owner, names) if self._is_read(node) else ():
                        self.keys[section].add(key)
                sections = self._sections(node, names) - {""}
                if sections and not self._uses_one_key(node):
                    self.whole |= sections - {self._bound(node)}
                if _name(node) in spaces and not sections:
                    self.is_complete &= self._uses_one_key(node) or self._is_passed_on(node, own)

    def _sections(self, node: ast.AST, names: dict[str, set[str]]) -> set[str]:
        return {self._section(node)} - {""} or names.get(_name(node), {""})

    def _section(self, node: ast.AST) -> str:
        """The section that an expression such as `x["train_input"]` gives."""
        return next((str(key) for _, key in _lookups(node) if key in USER_SECTIONS), "")

    def _bound(self, node: ast.AST) -> str:
        return self._section(node) if isinstance(self._parents.get(node), ast.Assign) else ""

    def _is_read(self, node: ast.AST) -> bool:
        is_default = isinstance(node, ast.Call) and isinstance(self._parents[node], ast.Expr)
        return not is_default and not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))

    def _uses_one_key(self, node: ast.AST) -> bool:
        """Whether an expression only reads or sets one key of a mapping, or binds the mapping to a name."""
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return True
        parent = self._parents[node]
        if isinstance(parent, ast.Subscript):
            return parent.value is node and isinstance(parent.slice, ast.Constant)
        if isinstance(parent, ast.Compare):
            return parent.left is not node
        return isinstance(parent, ast.Attribute) and parent.attr in _READERS

    def _is_passed_on(self, node: ast.AST, own: set[str]) -> bool:
        """Whether params are passed to code of these files, kept as an attribute, or returned."""
        parent = self._parents[node]
        if isinstance(parent, ast.keyword) and parent.arg is not None:
            parent = self._parents[parent]
        if isinstance(parent, ast.Call) and parent.func is not node:
            callee = parent.func
            if isinstance(callee, ast.Attribute) and callee.attr == "__init__":
                cls = self._parents[callee]
                while not isinstance(cls, (ast.ClassDef, ast.Module)):
                    cls = self._parents[cls]
                return all(self._takes_no_key(base, own) for base in getattr(cls, "bases", ()))
            return self._takes_no_key(callee, own)
        return isinstance(parent, (ast.Return, ast.arguments)) or (
            isinstance(parent, ast.Assign) and _name(parent.targets[0]).rpartition(".")[2] == "params"
        )

    def _takes_no_key(self, callee: ast.AST, own: set[str]) -> bool:
        """Whether the called code is read here too, or reads none of the user's keys."""
        return _name(callee).rpartition(".")[2] in own | set(_TAKES_NO_KEY)


def _lookups(node: ast.AST) -> Iterator[tuple[ast.AST, object]]:
    """Mapping and key of `x["key"]`, `x.get("key")` and `"key" in x`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield node.value, node.slice.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READERS:
        if node.args and isinstance(node.args[0], ast.Constant):
            yield node.func.value, node.args[0].value
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
        yield node.comparators[0], node.left.value


def _name(node: ast.AST) -> str:
    """`params` and `self.params`, as text."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
