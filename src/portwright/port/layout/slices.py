"""Which statements a value needs: everything that makes it, or changes it, on the way to the step."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from portwright.port.layout.anatomy import Anatomy
from portwright.port.layout.program import Frame, Given, Line, Setting, Var
from portwright.port.tree import FUNCTIONS

_GROWS = frozenset(
    {"append", "extend", "insert", "add", "update", "appendleft", "put", "setdefault", "write"}
)


@dataclass
class Slice:
    """Statements in their order, and the variables and settings that they and the wanted values mention."""

    lines: list[Line] = field(default_factory=list)
    needs: set[Var] = field(default_factory=set)
    settings: set[Setting] = field(default_factory=set)


class Slicer:
    def __init__(self, anatomy: Anatomy, ignores: Callable[[ast.stmt, Frame], bool]) -> None:
        self.anatomy, self.program, self.ignores = anatomy, anatomy.program, ignores

    def mentions(self, node: ast.AST, frame: Frame) -> tuple[set[Var], set[Var], set[Setting]]:
        """Variables read, variables written, settings; what a parameter was given counts, too."""
        reads: set[Var] = set()
        writes: set[Var] = set()
        settings: set[Setting] = set()
        for occurrence in self.program.occurrences(node, frame):
            ref = occurrence.ref
            if isinstance(ref, Var):
                (writes if occurrence.stores else reads).add(ref)
            elif isinstance(ref, Setting):
                settings.add(ref)
            elif isinstance(ref, Given) and ref.expr is not occurrence.node:
                inner = self.mentions(ref.expr, ref.frame)
                reads |= inner[0]
                settings |= inner[2]
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            writes.add(Var(frame.number, node.name))
        return reads, writes, settings

    def of_line(self, line: Line) -> tuple[set[Var], set[Var], set[Setting]]:
        if line.target is not None and line.value is not None:
            reads, _, settings = self.mentions(*line.value)
            more, writes, others = self.mentions(*line.target)
            return reads | more, writes, settings | others
        reads, writes, settings = self.mentions(line.node, line.frame)
        if isinstance(line.node, ast.AugAssign):
            reads = reads | writes
        for each in ast.walk(line.node):
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                for alias in each.names:
                    writes.add(Var(line.frame.number, alias.asname or alias.name.partition(".")[0]))
        return reads, writes, settings

    def cut(
        self,
        lines: Sequence[Line],
        wanted: Iterable[tuple[ast.expr, Frame]] = (),
        variables: Iterable[Var] = (),
        without: Iterable[Line] = (),
    ) -> Slice:
        """What expressions and variables need of some lines, up to the end of them."""
        result = Slice()
        result.needs |= set(variables)
        skipped = set(without)
        for node, frame in wanted:
            reads, _, settings = self.mentions(node, frame)
            result.needs |= reads
            result.settings |= settings
        alive = set(result.needs)
        for line in reversed(lines):
            if line in skipped:
                continue
            reads, writes, settings = self.of_line(line)
            if not (writes & alive) and not (self.effects(line) & alive):
                continue
            if is_plain(line) and not (writes & reads):
                alive -= writes
            alive |= reads
            result.lines.insert(0, line)
            result.needs |= reads | writes
            result.settings |= settings
        return result

    def effects(self, line: Line) -> set[Var]:
        """Variables whose objects a statement may change, beside those that it binds."""
        return set() if line.target is not None else self._effects(line.node, line.frame)

    def _effects(self, node: ast.stmt, frame: Frame) -> set[Var]:
        if self.ignores(node, frame):
            return set()
        match node:
            case ast.Expr(value=ast.Call() as call):
                return self._of_call(call, frame)
            case ast.Assign() | ast.AugAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                return {v for t in targets if not isinstance(t, ast.Name) for v in self.roots(t, frame)}
            case ast.For() | ast.AsyncFor():
                inner = {v for s in (*node.body, *node.orelse) for v in self._effects(s, frame)}
                own = self.mentions(node.target, frame)[1]
                # What is done to the items is done to what they come from.
                return (inner - own) | (self.mentions(node.iter, frame)[0] if inner & own else set())
            case ast.If() | ast.With() | ast.Try() | ast.While():
                blocks = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
                blocks += [handler.body for handler in getattr(node, "handlers", [])]
                return {v for block in blocks for s in block for v in self._effects(s, frame)}
        return set()

    def _of_call(self, call: ast.Call, frame: Frame) -> set[Var]:
        found: set[Var] = set()
        func = call.func
        if isinstance(func, ast.Attribute) and frame.unit.names.resolve(func) is None:
            found |= self.roots(func.value, frame)
            if func.attr in _GROWS:
                return found
        for argument in (*call.args, *(k.value for k in call.keywords)):
            found |= self.roots(argument, frame)
        return found

    def roots(self, node: ast.expr, frame: Frame) -> set[Var]:
        """The variable that `x`, `x.a.b` and `x[0]` are parts of."""
        while True:
            ref = self.program.reference(node, frame)
            if isinstance(ref, Var):
                return {ref}
            if isinstance(ref, Given) and ref.expr is not node:
                node, frame = ref.expr, ref.frame
            elif isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value  # model.parameters()
            else:
                return set()


def is_plain(line: Line) -> bool:
    """Whether a statement surely gives its names new values."""
    return line.target is not None or isinstance(line.node, (ast.Assign, ast.AnnAssign))
