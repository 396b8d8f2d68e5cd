"""The base class of rules, and the parsed file that rules read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, count
from typing import Any, ClassVar, TypeVar

from portwright.discover import answers_of, targets_that_answer
from portwright.needs import Answer
from portwright.port.finding import Edit, Finding, Safety
from portwright.port.names import Names
from portwright.port.project import Project
from portwright.port.source import Source
from portwright.port.steps import Flow
from portwright.port.tree import MethodCall, Tree, is_method_call

T = TypeVar("T")
Findings = Iterator[Finding]

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
    """One parsed file for rules: its text, its syntax tree, the meaning of its names, and what runs in a step."""

    def __init__(self, source: Source, project: Project, targets: frozenset[str]) -> None:
        self.source = source
        self.targets = targets
        self.tree = Tree(source.parse())
        self.names = Names(source.path, self.tree, project)
        self.flow = Flow(self.tree, self.names)
        self._readings: dict[Any, Any] = {}

    def once(self, make: Callable[[File], T]) -> T:
        """The result of `make` for this file, computed once and shared by rules."""
        if make not in self._readings:
            self._readings[make] = make(self)
        found: T = self._readings[make]
        return found

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        calls = self.tree.all(ast.Call)
        return _grouped((name, call) for call in calls if (name := self.names.resolve(call.func)) is not None)

    @cached_property
    def _methods(self) -> dict[str, list[MethodCall]]:
        calls = (call for call in self.tree.all(ast.Call) if is_method_call(call))
        return _grouped((call.func.attr, call) for call in calls if self.names.resolve(call.func) is None)

    @cached_property
    def _attributes(self) -> dict[str, list[ast.Attribute]]:
        return _grouped((node.attr, node) for node in self.tree.all(ast.Attribute))

    @cached_property
    def _names(self) -> dict[str, list[ast.Name]]:
        return _grouped((node.id, node) for node in self.tree.all(ast.Name))

    def uses(self, dotted: str) -> list[ast.expr]:
        """Every use of a library's function or class by its full name, also through aliases and without a call."""
        last = dotted.rpartition(".")[2]
        imported = self.tree.scope.bindings.items()
        aliases = {last, *(n for n, found in imported if any(b.dotted.endswith(last) for b in found))}
        names = (node for name in aliases for node in self._names.get(name, ()))
        nodes: list[ast.Attribute | ast.Name] = [*self.attributes(last), *names]
        return [n for n in nodes if isinstance(n.ctx, ast.Load) and self.resolve(n) == dotted]

    def calls(self, *dotted: str) -> list[ast.Call]:
        """Calls of functions and classes by their full names; a name that ends with `.` means all names below it."""
        return [
            call
            for name in dotted
            for known in ([n for n in self._calls if n.startswith(name)] if name.endswith(".") else [name])
            for call in self._calls.get(known, ())
        ]

    def methods(self, *names: str) -> list[MethodCall]:
        """Calls of methods by name, on values other than imported modules and classes."""
        return [call for name in names for call in self._methods.get(name, ())]

    def operations(self, *names: str) -> list[ast.Call]:
        """Calls of operations that torch has both as functions and as methods of a tensor."""
        return [*self.calls(*(f"torch.{name}" for name in names)), *self.methods(*names)]

    def attributes(self, *names: str) -> list[ast.Attribute]:
        return [node for name in names for node in self._attributes.get(name, ())]

    def resolve(self, node: ast.AST) -> str | None:
        return self.names.resolve(node)

    def segment(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def short(self, node: ast.AST) -> str:
        """A node's text on one line, not too long for a message."""
        text = " ".join(self.segment(node).split())
        return text if len(text) <= 60 else f"{text[:57]}..."

    def replace(self, node: ast.AST, text: str) -> Edit:
        start, end = self.source.span(node)
        return Edit(start, end, text)

    def binds(self, name: str) -> bool:
        """Whether any scope of the file defines a name."""
        return any(name in scope.bindings for scope in self.tree.scopes.values())

    def free_name(self, *wanted: str) -> str:
        """The first of these names that the file does not use, not even in a text; else the last with a number."""
        numbered = (f"{wanted[-1]}_{number}" for number in count(2))
        return next(name for name in chain(wanted, numbered) if name not in self._taken)

    @cached_property
    def _taken(self) -> set[str]:
        declared = (name for node in self.tree.all(ast.Global, ast.Nonlocal) for name in node.names)
        texts = (node.value for node in self.tree.all(ast.Constant) if isinstance(node.value, str))
        return {*self._names, *declared, *texts}.union(*(s.bindings for s in self.tree.scopes.values()))


def _grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for name, node in pairs:
        found[name].append(node)
    return found


class Rule:
    """One rule. A subclass is one file in rules/ (or an entry point `portwright.rules`), and its docstring is its page.

    The rule runs only on files of `framework` that contain one of `words`. A finding without edits is manual, whatever
    the rule's safety is.
    """

    code: ClassVar[str]
    name: ClassVar[str]  # by default from the name of its file
    # names of portwright/needs.py; the rule is for targets that answer one of them
    needs: ClassVar[tuple[str, ...]] = ()
    safety: ClassVar[Safety] = "manual"
    words: ClassVar[tuple[str, ...]]
    cure: ClassVar[str]  # unless the target's answer has its own cure
    framework: ClassVar[str] = "torch"
    conditions: ClassVar[str] = ""  # of safety, shared by all rules of its kind; ends the page

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the rule in lower case; a subclass for one vendor's package may override it."""
        return targets_that_answer(self.needs)

    def find(self, file: File) -> Findings:
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
        needs: tuple[str, ...] = (),
        given: Iterable[str] = (),
        safety: Safety | None = None,
    ) -> Finding:
        """A finding for the targets that answer the rule's needs (or only `needs`), but not for those that take a name in `given`."""
        start, _ = file.source.span(node)
        line, column = file.source.position(start)
        edits = tuple(edits)
        concerned = tuple(
            target
            for target in (targets_that_answer(needs) if needs else self.targets)
            if target in file.targets
            and not any(
                name in answer.takes for answer in self._answers(target, self.needs) for name in given
            )
        )
        return Finding(
            code=self.code,
            path=str(file.source.path),
            line=line,
            column=column,
            message=message,
            cure=cure or self.cure_for(concerned, needs),
            safety=(safety or self.safety) if edits else "manual",
            targets=concerned,
            end_line=node.end_lineno or line,  # type: ignore[attr-defined]
            edits=edits,
            imports=imports,
        )

    def _answers(self, target: str, needs: Iterable[str]) -> list[Answer]:
        known = answers_of(target)
        return [known[need] for need in needs if need in known]

    def cure_for(self, targets: tuple[str, ...], needs: tuple[str, ...] = ()) -> str:
        """The targets' own cures for the needs, or the rule's."""
        own = {t: [a.cure for a in self._answers(t, (*needs, *self.needs)) if a.cure] for t in targets}
        cures = {target: (words or [self.cure])[0] for target, words in own.items()}
        if len(set(cures.values())) < 2:
            return next(iter(cures.values()), self.cure)
        return " ".join(f"{target}: {text}" for target, text in cures.items())

    @classmethod
    def group(cls) -> str:
        return next(title for start, title in GROUPS.items() if cls.code.startswith(start))
