"""The rules that put a legal form in the place of what a target refuses differ only in their tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import ClassVar

from portwright.port.finding import Edit, Finding, Safety
from portwright.port.rewrite import has_star, keyword, legal_import, text_of
from portwright.port.rule import File, Rule


class LegalForm(Rule):
    """Rewrites layers wherever they are named, and functions and methods where a step runs them.

    The keys of `layers` and `functions` are torch's full names, the values names in portwright.layers.legal.
    """

    targets = ("csx",)
    safety = "safe"
    layers: ClassVar[Mapping[str, str]] = {}
    functions: ClassVar[Mapping[str, str]] = {}
    methods: ClassVar[Mapping[str, str]] = {}  # a tensor's method: the form takes the tensor first
    library: ClassVar[str] = "portwright.layers.legal"
    reason: ClassVar[str]

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        """Whether this use is refused; a text says what has to be done first, by hand.

        `offset` is 1 for a method, whose first argument stands before the dot.
        """
        return True

    def find(self, file: File) -> Iterator[Finding]:
        for name, form in self.layers.items():
            for node in self._layer_uses(file, name):
                call = file.tree.parents.get(node)
                call = call if isinstance(call, ast.Call) and call.func is node else None
                yield from self._rewrite(file, name, form, node, call)
        for name, form in self.functions.items():
            for call in file.calls(name):
                if file.flow.in_step(call) and keyword(call, "out") is None:
                    yield from self._rewrite(file, name, form, call.func, call)
        for method, form in self.methods.items():
            for call in file.methods(method):
                if file.flow.in_step(call) and self._is_tensor(file, call):
                    yield from self._rewrite_method(file, method, form, call)

    def _layer_uses(self, file: File, name: str) -> Iterator[ast.expr]:
        last = name.rpartition(".")[2]
        if last.encode() not in file.source.data:
            return
        for node in file.uses(name):
            if not isinstance(file.tree.parents.get(node), ast.Attribute) and not _only_named(file, node):
                yield node

    def _is_tensor(self, file: File, call: ast.Call) -> bool:
        assert isinstance(call.func, ast.Attribute)
        return file.flow.kind(call.func.value) in ("tensor", None) and not isinstance(
            call.func.value, ast.Constant
        )

    def safety_of(self, file: File, name: str) -> Safety:
        return self.safety

    def _rewrite(
        self, file: File, name: str, form: str, node: ast.expr, call: ast.Call | None
    ) -> Iterator[Finding]:
        needed = self.needs(file, name, call, 0)
        short = name.replace("torch.nn.functional.", "F.").replace("torch.nn.", "nn.")
        if needed is True:
            legal, imports = legal_import(file)
            yield self.report(
                file, call or node, f"{short}: {self.reason}", [file.replace(node, f"{legal}.{form}")], imports,
                cure=f"Use legal.{form}, which computes the same.", safety=self.safety_of(file, name),
            )  # fmt: skip
        elif needed:
            yield self.report(file, call or node, f"{short}: {self.reason}", cure=str(needed))

    def _rewrite_method(self, file: File, method: str, form: str, call: ast.Call) -> Iterator[Finding]:
        assert isinstance(call.func, ast.Attribute)
        needed = self.needs(file, method, call, 1)
        if needed is True:
            legal, imports = legal_import(file)
            start, end = file.source.span(call)
            tensor = text_of(file, call.func.value)
            inner = arguments_text(file, call)
            text = f"{legal}.{form}({tensor}{', ' if inner else ''}{inner})"
            yield self.report(
                file, call, f".{method}(): {self.reason}", [Edit(start, end, text)], imports,
                cure=f"Use legal.{form}, which computes the same.",
            )  # fmt: skip
        elif needed:
            yield self.report(file, call, f".{method}(): {self.reason}", cure=str(needed))


def arguments_text(file: File, call: ast.Call) -> str:
    """What stands between a call's parentheses."""
    assert isinstance(call.func, ast.Attribute)
    _, after = file.source.span(call.func)
    _, end = file.source.span(call)
    inner = file.source.data[after : end - 1].decode("utf-8")
    return inner[inner.index("(") + 1 :].strip()


def _only_named(file: File, node: ast.AST) -> bool:
    """Uses of a class that make no layer: as a base, a type, or what isinstance looks for (a legal form passes that)."""
    inner: ast.AST = node
    for outer in file.tree.ancestors(node):
        if isinstance(outer, ast.ClassDef):
            return inner in outer.bases
        if isinstance(outer, ast.Call) and inner is not outer.func:
            name = outer.func.id if isinstance(outer.func, ast.Name) else ""
            if name in ("isinstance", "issubclass"):
                return True
        if isinstance(outer, (ast.arg, ast.AnnAssign)):
            return inner is getattr(outer, "annotation", None)
        if isinstance(outer, ast.stmt):
            return inner is getattr(outer, "returns", None)
        inner = outer
    return False


def is_grouped(call: ast.Call | None, position: int) -> bool:
    """Whether a convolution may have several groups; they stand at `position` where they are not named."""
    if call is None:
        return False
    given = keyword(call, "groups")
    if given is None and has_star(call):
        return False
    value = given.value if given else call.args[position] if len(call.args) > position else None
    return value is not None and not (isinstance(value, ast.Constant) and value.value == 1)
