"""What a rule is, and the file that it looks at."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from portwright.port.finding import Edit, Finding, Safety
from portwright.port.flow import Flow
from portwright.port.names import Names
from portwright.port.project import Project
from portwright.port.source import Source
from portwright.port.tree import Tree

T = TypeVar("T")

GROUPS = {
    "PW0": "the file itself",
    "PW1": "data and shapes",
    "PW2": "host reads in the step",
    "PW3": "model and layers",
    "PW4": "loss and optimizer",
    "PW5": "device and distribution",
    "PW60": "traps of published ports",
    "PW6": "TensorFlow",
}


class File:
    """One parsed file as rules see it: its text, its tree, what its names mean and what runs in a step."""

    def __init__(self, source: Source, project: Project, targets: frozenset[str]) -> None:
        self.source = source
        self.targets = targets
        self.tree = Tree(source.parse())
        self.names = Names(source.path, self.tree, project)
        self.flow = Flow(self.tree, self.names)
        self._readings: dict[Any, Any] = {}

    def once(self, make: Callable[[File], T]) -> T:
        """A reading of this file that several rules share, made when the first of them asks."""
        if make not in self._readings:
            self._readings[make] = make(self)
        found: T = self._readings[make]
        return found

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        calls: defaultdict[str, list[ast.Call]] = defaultdict(list)
        for call in self.tree.all(ast.Call):
            dotted = self.names.resolve(call.func)
            if dotted is not None:
                calls[dotted].append(call)
        return calls

    @cached_property
    def _methods(self) -> dict[str, list[ast.Call]]:
        calls: defaultdict[str, list[ast.Call]] = defaultdict(list)
        for call in self.tree.all(ast.Call):
            if isinstance(call.func, ast.Attribute) and self.names.resolve(call.func) is None:
                calls[call.func.attr].append(call)
        return calls

    @cached_property
    def _attributes(self) -> dict[str, list[ast.Attribute]]:
        found: defaultdict[str, list[ast.Attribute]] = defaultdict(list)
        for node in self.tree.all(ast.Attribute):
            found[node.attr].append(node)
        return found

    @cached_property
    def _names(self) -> dict[str, list[ast.Name]]:
        found: defaultdict[str, list[ast.Name]] = defaultdict(list)
        for node in self.tree.all(ast.Name):
            found[node.id].append(node)
        return found

    def uses(self, dotted: str) -> list[ast.expr]:
        """Every place that names a library's function or class, called or not, whatever it is called there."""
        last = dotted.rpartition(".")[2]
        aliases = {
            last,
            *(
                n
                for n, found in self.tree.scope.bindings.items()
                if any(b.dotted.endswith(last) for b in found)
            ),
        }
        nodes: list[ast.expr] = [
            *self.attributes(last),
            *(node for name in aliases for node in self._names.get(name, ())),
        ]
        return [n for n in nodes if isinstance(n.ctx, ast.Load) and self.resolve(n) == dotted]  # type: ignore[attr-defined]

    def calls(self, *dotted: str) -> list[ast.Call]:
        """Calls of functions and classes by their full names; a name that ends with `.` stands for all below it."""
        found: list[ast.Call] = []
        for name in dotted:
            if name.endswith("."):
                found += [c for known, calls in self._calls.items() if known.startswith(name) for c in calls]
            else:
                found += self._calls.get(name, ())
        return found

    def methods(self, *names: str) -> list[ast.Call]:
        """Calls of methods by name, on whatever is not a module or class."""
        return [call for name in names for call in self._methods.get(name, ())]

    def attributes(self, *names: str) -> list[ast.Attribute]:
        return [node for name in names for node in self._attributes.get(name, ())]

    def resolve(self, node: ast.AST) -> str | None:
        return self.names.resolve(node)

    def segment(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def replace(self, node: ast.AST, text: str) -> Edit:
        start, end = self.source.span(node)
        return Edit(start, end, text)

    def binds(self, name: str) -> bool:
        """Whether any scope of the file gives a name a meaning of its own."""
        return any(name in scope.bindings for scope in self.tree.scopes.values())


class Rule:
    """One pattern. A subclass is one file in rules/ (or an entry point `portwright.rules`), and its docstring is its page.

    `words` are texts one of which a file must contain for the rule to be asked at all; `framework` is whose files it looks
    at. A finding without edits is manual, whatever the rule's safety is.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]]
    safety: ClassVar[Safety]
    words: ClassVar[tuple[str, ...]]
    cure: ClassVar[str | Mapping[str, str]]
    framework: ClassVar[str] = "torch"

    def find(self, file: File) -> Iterator[Finding]:
        raise NotImplementedError

    def report(
        self,
        file: File,
        node: ast.AST,
        message: str,
        edits: Iterable[Edit] = (),
        imports: tuple[str, ...] = (),
        *,
        cure: str | None = None,
        targets: Iterable[str] | None = None,
        safety: Safety | None = None,
    ) -> Finding:
        start, _ = file.source.span(node)
        line, column = file.source.position(start)
        edits = tuple(edits)
        concerned = tuple(t for t in (self.targets if targets is None else targets) if t in file.targets)
        return Finding(
            code=self.code,
            path=str(file.source.path),
            line=line,
            column=column,
            message=message,
            cure=cure or self.cure_for(concerned),
            safety=(safety or self.safety) if edits else "manual",
            targets=concerned,
            end_line=node.end_lineno or line,  # type: ignore[attr-defined]
            edits=edits,
            imports=imports,
        )

    def cure_for(self, targets: tuple[str, ...]) -> str:
        if isinstance(self.cure, str):
            return self.cure
        cures = {t: self.cure[t] for t in targets if t in self.cure}
        if len(set(cures.values())) == 1:
            return next(iter(cures.values()))
        return " ".join(f"{target}: {text}" for target, text in cures.items())

    @classmethod
    def group(cls) -> str:
        return next(title for start, title in GROUPS.items() if cls.code.startswith(start))
