"""The account of a script's statements: each is placed, dissolved into run(), or left to a person."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from portwright.port.finding import Finding
from portwright.port.layout.anatomy import place_of
from portwright.port.layout.units import Unit

NOT_PLACED = "PW701"
REFUSED = "PW702"
NOT_SAID = "PW703"


@dataclass
class Account:
    """Rows for the report; statements are told apart by their node."""

    targets: tuple[str, ...]
    placed: dict[ast.AST, dict[str, Any]] = field(default_factory=dict)
    dissolved: dict[ast.AST, dict[str, Any]] = field(default_factory=dict)
    left: list[Finding] = field(default_factory=list)
    _left: set[ast.AST] = field(default_factory=set)

    def place(self, unit: Unit, node: ast.AST, where: str) -> None:
        row = self.placed.setdefault(node, {**_row(unit, node), "where": where})
        if where not in row["where"].split(", "):
            row["where"] += f", {where}"

    def dissolve(self, unit: Unit, node: ast.AST, into: str) -> None:
        if node not in self.placed:
            self.dissolved.setdefault(node, {**_row(unit, node), "into": into})

    def leave(
        self, unit: Unit, node: ast.AST | None, message: str, cure: str, code: str = NOT_PLACED
    ) -> None:
        line, column = place_of(unit, node)
        if any(f.message == message and f.line == line and f.path == str(unit.path) for f in self.left):
            return
        if node is not None:
            self._left.add(node)
        end = getattr(node, "end_lineno", line) or line
        self.left.append(
            Finding(code, str(unit.path), line, column, message, cure, "manual", self.targets, end)
        )

    def is_left(self, node: ast.AST) -> bool:
        return node in self._left

    def knows(self, node: ast.AST) -> bool:
        return node in self.placed or node in self.dissolved or node in self._left


def _row(unit: Unit, node: ast.AST) -> dict[str, Any]:
    line, _ = place_of(unit, node)
    text = unit.text(node).split("\n")[0].strip()
    return {
        "path": str(unit.path),
        "line": line,
        "statement": text if len(text) <= 100 else text[:97] + "...",
    }
