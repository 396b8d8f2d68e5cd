"""A file as one target's branch sees it: without other targets' branches, and without what other devices run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from portwright.port.names import Names, members_of_enum, split_reference
from portwright.port.project import Project
from portwright.port.rule import File
from portwright.port.source import Source
from portwright.port.steps import Flow
from portwright.port.tree import Tree

PLAIN_MEMBERS = frozenset({"CPU", "GPU", "CUDA"})


@dataclass(frozen=True)
class DeviceChoice:
    """A comparison with a member of the project's enumeration of devices, as in `args.mode == ComputeMode.GPU`."""

    asked: str  # args.mode
    root: str  # args
    owner: str  # the class whose `self` it is, or ""
    line: int | None  # of the scope that binds the root; None for the file's own
    enum: str  # ComputeMode, as the file names it
    path: Path
    name: str
    members: frozenset[str]


def find_choices(file: File) -> list[DeviceChoice]:
    """Every way in which a file asks its enumeration of devices, in the order of the text."""
    found: dict[tuple[str, str, str], DeviceChoice] = {}
    for node in sorted(file.tree.all(ast.Compare), key=lambda n: (n.lineno, n.col_offset)):
        for asked, member in _sides(node):
            reference = file.resolve(member.value)
            members = members_of_enum(file.names, reference) if reference and "::" in reference else None
            if not members or not PLAIN_MEMBERS & {m.upper() for m in members}:
                continue
            assert reference is not None
            root: ast.expr = asked
            while isinstance(root, ast.Attribute):
                root = root.value
            if not isinstance(root, ast.Name):
                continue
            info = file.tree.class_of(node) if root.id == "self" else None
            bound = file.tree.scope_of(root).lookup(root.id)
            if bound is None:
                continue
            owner = info.node.name if info is not None else ""
            line = None if info is not None else getattr(bound[0].node, "lineno", None)
            path, name = split_reference(reference)
            text, enum = file.segment(asked), file.segment(member.value)
            choice = DeviceChoice(text, root.id, owner, line, enum, path, name, members)
            found.setdefault((text, owner, str(line)), choice)
    return list(found.values())


def _sides(node: ast.Compare) -> Iterable[tuple[ast.expr, ast.Attribute]]:
    if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.Is)):
        left, right = node.left, node.comparators[0]
        if isinstance(right, ast.Attribute):
            yield left, right
        if isinstance(left, ast.Attribute):
            yield right, left


class SeenFile(File):
    """The file with the branches that a target never takes left out of its tree; places in the text stay what they are."""

    def __init__(
        self, source: Source, project: Project, target: str, others: Sequence[str], packages: Sequence[str]
    ) -> None:
        whole = File(source, project, frozenset({target}))
        self.choices = find_choices(whole)
        self.source, self.targets = source, frozenset({target})
        module = source.parse()
        _Pruner(source, target, others, packages, self.choices).visit(module)
        self.tree = Tree(module)
        self.names = Names(source.path, self.tree, project)
        self.flow = Flow(self.tree, self.names)
        self._whole = whole

    def binds(self, name: str) -> bool:
        return self._whole.binds(name) or any(name in c.attributes for c in self._whole.tree.classes.values())


class _Pruner(ast.NodeTransformer):
    def __init__(
        self, source: Source, target: str, others: Sequence[str], packages: Sequence[str], choices: Sequence[DeviceChoice]
    ) -> None:  # fmt: skip
        self.source, self.target, self.packages = source, target, packages
        self.foreign = (
            re.compile(rf"(self\.)?({'|'.join(others)})_(training|inference)_*") if others else None
        )
        self.known = {(c.asked, c.enum) for c in choices}

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        kept: list[ast.stmt] | None = None
        verdict = self._verdict(node.test)
        if verdict is not None:
            kept = node.body if verdict else node.orelse
        elif self._opens_another(node):
            kept = node.orelse
        if kept is None or any(self._is_elif(s) for s in kept):
            return node
        return kept

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        verdict = self._verdict(node.test)
        return node if verdict is None else node.body if verdict else node.orelse

    def generic_visit(self, node: ast.AST) -> ast.AST:
        before = {name: list(getattr(node, name)) for name in ("body", "finalbody") if isinstance(getattr(node, name, None), list)}  # fmt: skip
        super().generic_visit(node)
        for name, block in before.items():
            if block and not getattr(node, name):  # a block has at least one statement
                setattr(node, name, block)
        return node

    def _verdict(self, test: ast.expr) -> bool | None:
        """Whether a condition is known on this target: another device is not asked for, another's executor is None."""
        if isinstance(test, ast.BoolOp):
            parts = [self._verdict(value) for value in test.values]
            if isinstance(test.op, ast.And):
                return False if False in parts else None
            return True if True in parts else False if all(p is False for p in parts) else None
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = test.left, test.comparators[0]
        if self.foreign and isinstance(right, ast.Constant) and right.value is None:
            if self.foreign.fullmatch(self.source.segment(left)):
                return isinstance(test.ops[0], ast.Is)
            return None
        for asked, member in _sides(test):
            if (self.source.segment(asked), self.source.segment(member.value)) in self.known:
                return False if member.attr.lower() != self.target else None
        return None

    def _opens_another(self, node: ast.If) -> bool:
        """Whether a branch begins with `if package is None: raise`, as the opening of another target's does."""
        first = node.body[0]
        return (
            isinstance(first, ast.If)
            and isinstance(first.test, ast.Compare)
            and isinstance(first.test.left, ast.Name)
            and first.test.left.id in self.packages
            and isinstance(first.body[0], ast.Raise)
        )

    def _is_elif(self, statement: ast.stmt) -> bool:
        start, _ = self.source.span(statement)
        return isinstance(statement, ast.If) and self.source.data[start : start + 4] == b"elif"
