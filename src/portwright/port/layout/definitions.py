"""Functions, classes, constants and imports of a script: who needs which, and in which file of the layout each goes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from portwright.port.layout.program import Global, Program, Var
from portwright.port.layout.text import definition_globals, statement_text
from portwright.port.layout.units import Unit
from portwright.port.tree import FUNCTIONS, asks_own_name

OWN_FILES = ("model", "data", "utils", "run", "left_over")


class Definitions:
    """The top level of the script."""

    def __init__(self, program: Program) -> None:
        self.program, self.unit = program, program.entry
        self.homes: dict[str, ast.stmt] = {}  # names and the top-level statements that bind them
        self.stars: list[ast.ImportFrom] = []
        for statement in self.unit.tree.module.body:
            for name in _bound(statement):
                self.homes[name] = statement
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                self.stars.append(statement)
        self.files: dict[str, str] = {}  # definitions by name, and the file that has them
        self.moved: dict[Path, str] = {}  # modules of the project, and their dotted names in the layout

    def is_import(self, name: str) -> bool:
        home = self.homes.get(name)
        return isinstance(home, (ast.Import, ast.ImportFrom)) or (
            isinstance(home, (ast.Try, ast.If))
            and any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(home))
        )

    def is_definition(self, name: str) -> bool:
        return isinstance(self.homes.get(name), (*FUNCTIONS, ast.ClassDef))

    def closure(self, names: Iterable[str]) -> set[str]:
        """Names with all that their definitions need of the top level."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found or name not in self.homes:
                continue
            found.add(name)
            if not self.is_import(name) and self.is_definition(name):
                waiting += definition_globals(self.unit, self.homes[name])
        return found

    def variables(self, names: Iterable[str]) -> set[Var]:
        """Those of some names that are variables of the module: definitions read them as globals."""
        found = set()
        for name in names:
            ref = self.program.lookup(self.program.main, name)
            if name in self.homes and isinstance(ref, Var):
                found.add(ref)
        return found

    def text(self, name: str) -> str:
        return statement_text(self.unit.source, self.homes[name], [], "")

    def import_text(self, unit: Unit, names: Iterable[str]) -> list[str]:
        """Import statements of a file for some of its names, as they read from the layout's folder."""
        wanted = set(names)
        lines: list[str] = []
        for statement in unit.tree.module.body:
            bound = _bound(statement)
            if not bound & wanted and not (
                isinstance(statement, ast.ImportFrom) and statement in self.stars and unit is self.unit
            ):
                continue
            if isinstance(statement, ast.ImportFrom):
                lines.append(self._from_text(unit, statement, wanted))
            elif isinstance(statement, ast.Import):
                lines += self._plain_text(unit, statement, wanted)
            elif (
                isinstance(statement, (ast.Try, ast.If))
                and unit is self.unit
                and self.is_import(next(iter(bound & wanted)))
            ):
                lines.append(statement_text(unit.source, statement, [], "").rstrip("\n"))
        return lines

    def _from_text(self, unit: Unit, node: ast.ImportFrom, wanted: set[str]) -> str:
        base = self.module_name(unit, node.module or "", node.level)
        rows: dict[str, list[str]] = {}
        for alias in node.names:
            if alias.name != "*" and (alias.asname or alias.name) not in wanted:
                continue
            inner = f"{node.module}.{alias.name}" if node.module else alias.name
            path = (
                self.program.workspace.project.find_module(unit.path, inner, node.level)
                if alias.name != "*"
                else None
            )
            bound = f" as {alias.asname}" if alias.asname else ""
            if path is not None and path in self.moved:  # a module of a package
                head, _, last = self.moved[path].rpartition(".")
                if not head:
                    rows.setdefault("", []).append(
                        f"import {last} as {alias.asname or alias.name}"
                        if last != alias.name or bound
                        else f"import {last}"
                    )
                    continue
                same = bound or (f" as {alias.name}" if last != alias.name else "")
                rows.setdefault(head, []).append(last + same)
                continue
            rows.setdefault(base, []).append(alias.name + bound)
        plain = rows.pop("", [])
        return "\n".join(
            [*plain, *(f"from {head} import {', '.join(parts)}" for head, parts in rows.items())]
        )

    def _plain_text(self, unit: Unit, node: ast.Import, wanted: set[str]) -> list[str]:
        lines = []
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if bound not in wanted:
                continue
            name = self.module_name(unit, alias.name, 0)
            if name != alias.name and not alias.asname:
                lines.append(f"import {name} as {alias.name}")
            else:
                lines.append(f"import {name}" + (f" as {alias.asname}" if alias.asname else ""))
        return lines

    def module_name(self, unit: Unit, dotted: str, level: int) -> str:
        path = self.program.workspace.project.find_module(unit.path, dotted, level)
        if path is None:
            return dotted
        return self.moved.get(path, dotted)

    def foreign_text(self, needed: Iterable[Global]) -> list[str]:
        """Imports for names of other files, whose statements moved here."""
        lines = []
        for each in sorted(needed, key=lambda g: (str(g.unit.path), g.name)):
            if each.unit is self.unit:
                continue
            bindings = each.unit.tree.scope.bindings.get(each.name)
            if not bindings:
                continue
            if bindings[0].kind == "import":
                lines += self.import_text(each.unit, [each.name])
            else:
                lines.append(f"from {self.moved.get(each.unit.path, each.unit.path.stem)} import {each.name}")
        return lines


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds."""
    match statement:
        case ast.Import():
            return {a.asname or a.name.partition(".")[0] for a in statement.names}
        case ast.ImportFrom():
            return {a.asname or a.name for a in statement.names} - {"*"}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.If() if asks_own_name(statement.test):
            return set()
    found = set()
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found.add(node.name)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= _bound(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting += [c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.Lambda)]
    return found
