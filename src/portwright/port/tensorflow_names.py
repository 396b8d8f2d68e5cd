"""Resolves TensorFlow's names in a file, and tells whether the file is written for TensorFlow 1."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from portwright.port.finding import Edit
from portwright.port.rewrite import has_star, imported_as
from portwright.port.rule import File, Rule
from portwright.port.tensorflow_v1 import TABLE
from portwright.port.tree import dotted_chain, imported_tops, words

Kind = Literal["gone", "module", "other", "arguments"]
_GENERATIONS = ("compat.v1.", "compat.v2.")
_BASES = {"tensorflow": "", "tensorflow.compat.v1": "compat.v1.", "tensorflow.compat.v2": "compat.v2."}
ALIAS = "ptf"


class TensorFlowRule(Rule):
    """A rule for files that import TensorFlow or Keras."""

    framework = "tensorflow"


@dataclass(frozen=True)
class Row:
    """How one name of TensorFlow 1 changed."""

    kind: Kind
    shared: int = 0  # number of leading arguments that are the same in both versions
    keywords: frozenset[str] = frozenset()

    @property
    def is_gone(self) -> bool:
        """Whether `tf` has the name no more, instead of with another meaning."""
        return self.kind in ("gone", "module")


@cache
def table() -> dict[str, Row]:
    """The rows of all names; in TABLE a word that ends with a colon is the module of the words after it."""
    found, module = {}, ""
    for kind, listed in TABLE.items():
        for word in listed.split():
            if word.endswith(":"):
                module = word.replace(":", ".").removeprefix(".")
                continue
            name, shared, keywords = (*word.split("/"), "0", "")[:3]
            found[module + name] = Row(kind, int(shared), frozenset(keywords.split(",")) - {""})  # type: ignore[arg-type]
    return found


def row_of(name: str) -> Row | None:
    """The row of a name below `tf`, or of the removed module that it is in."""
    rows = table()
    if name in rows:
        return rows[name]
    while "." in name:
        name = name.rpartition(".")[0]
        row = rows.get(name)
        if row is not None:
            return row if row.kind in ("module", "gone", "other") else None
    return None


def is_legacy_keras(name: str) -> bool:
    """Whether tf.compat.v1 has a name only with legacy Keras."""
    starts = "layers. nn.rnn_cell. nn.dynamic_rnn nn.static_rnn nn.bidirectional_dynamic_rnn nn.static_bidirectional"
    return name in ("layers", "nn.rnn_cell") or name.startswith(tuple(starts.split()))


@dataclass(frozen=True)
class Reference:
    """One use of a TensorFlow name."""

    node: ast.expr
    name: str  # below `tf`, without compat.v1
    generation: str  # "", "compat.v1." or "compat.v2.": how it is reached
    root: ast.Name | None  # the name that means `tf` there; None where the name itself was imported


class TensorFlowNames:
    """Every TensorFlow name in a file."""

    def __init__(self, file: File) -> None:
        self._file = file

    @cached_property
    def references(self) -> list[Reference]:
        """All references in the order of the text; `tf.a.b` is one."""
        found = [r for node in self._outermost() if (r := self._refer(node)) is not None]
        return sorted(found, key=lambda r: (r.node.lineno, r.node.col_offset))

    def named(self, *names: str) -> list[Reference]:
        """References to these names; one that ends with `.` means all names below it."""
        exact = frozenset(names)
        below = tuple(n for n in names if n.endswith("."))
        return [r for r in self.references if r.name in exact or (below and r.name.startswith(below))]

    def calls(self, *names: str) -> list[tuple[ast.Call, str]]:
        """Calls of these names, each with the name that is called."""
        parent_call = self._file.tree.parent_call
        return [(call, r.name) for r in self.named(*names) if (call := parent_call(r.node)) is not None]

    @cached_property
    def imports(self) -> list[tuple[ast.ImportFrom, ast.alias, str]]:
        """`from tensorflow... import name`: the statement, the alias, and the full name below tf."""
        return [
            (node, alias, f"{node.module}.{alias.name}".removeprefix("tensorflow."))
            for node in self._file.tree.all(ast.ImportFrom)
            if not node.level and node.module and node.module.partition(".")[0] == "tensorflow"
            for alias in node.names
        ]

    def spell(self, name: str) -> str | None:
        """A name below `tf` as this file can write it; None if it imports no `tf` at the top level."""
        for bound, bindings in self._file.tree.scope.bindings.items():
            base = _BASES.get(bindings[0].dotted)
            is_module = bindings[0].kind == "import" and not bindings[0].level
            if base not in ("", "compat.v1.") or not is_module:
                continue
            if not binds_another(self._file, bound, bindings[0].dotted):
                return f"{bound}.{name.removeprefix(base)}"
        return None

    @cached_property
    def is_version_1(self) -> bool:
        """Whether the file uses names that only TensorFlow 1 has."""
        references = [r for r in self.references if not r.generation]
        return any(
            name.partition(".")[0] == "contrib" or ((row := row_of(name)) is not None and row.is_gone)
            for name in [*(name for _, _, name in self.imports), *(r.name for r in references)]
        ) or any(self._has_gone_keyword(reference) for reference in references)

    @cached_property
    def may_be_for_both(self) -> bool:
        """Whether the file tests the version of TensorFlow, so that it may never use removed names."""
        tree = self._file.tree
        asks = [
            call.args[0]
            for call in tree.all(ast.Call)
            if isinstance(call.func, ast.Name) and call.func.id in ("hasattr", "getattr") and call.args
        ]
        return (
            any((self._file.resolve(node) or "").startswith("tensorflow") for node in asks)
            or any(r.name.partition(".")[0] in ("__version__", "VERSION", "version") for r in self.references)
            or any(
                isinstance(outer, ast.Try) and outer.handlers
                for r in self.references
                if not r.generation and row_of(r.name) is not None
                for outer in tree.ancestors(r.node)
            )
        )

    def comes_with_its_module(self, reference: Reference) -> bool:
        """Whether a name is used through an imported module that was removed: then the import is rewritten instead."""
        chain = dotted_chain(reference.node)
        dotted = (chain is not None and self._file.resolve(chain[0])) or ""
        row = row_of(dotted.removeprefix("tensorflow."))
        is_gone = row is not None and row.kind in ("gone", "module", "other")
        return reference.root is None and (is_gone or is_legacy_keras(dotted.removeprefix("tensorflow.")))

    def needs_version_1(self, reference: Reference) -> bool:
        """Whether a name of TensorFlow 1 keeps its meaning only under tf.compat.v1."""
        row = row_of(reference.name)
        if row is None or reference.generation:
            return False
        if row.kind != "arguments":
            return True
        call = self._file.tree.parent_call(reference.node)
        if call is None or has_star(call):
            return True  # passed on, to be called with unknown arguments
        return len(call.args) > row.shared or any(k.arg not in row.keywords for k in call.keywords)

    def _has_gone_keyword(self, reference: Reference) -> bool:
        row, call = row_of(reference.name), self._file.tree.parent_call(reference.node)
        if row is None or row.kind != "arguments" or call is None:
            return False
        gone = words("keep_dims reduction_indices keep_prob dimension squeeze_dims dim") - row.keywords
        return any(k.arg in gone for k in call.keywords)

    def _outermost(self) -> Iterator[ast.expr]:
        for node in self._file.tree.all(ast.Attribute, ast.Name):
            is_read = isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load)
            if is_read and not isinstance(self._file.tree.parents.get(node), ast.Attribute):
                yield node

    def _refer(self, node: ast.expr) -> Reference | None:
        dotted = self._file.resolve(node)
        if dotted is None or not dotted.startswith("tensorflow."):
            return None
        name, generation = dotted.removeprefix("tensorflow."), ""
        for known in _GENERATIONS:
            if name.startswith(known):
                name, generation = name.removeprefix(known), known
        chain = dotted_chain(node)
        is_tf = chain is not None and self._file.resolve(chain[0]) in _BASES
        return Reference(node, name, generation, chain[0] if is_tf and chain is not None else None)


def tensorflow_of(file: File) -> TensorFlowNames:
    return file.once(TensorFlowNames)


def spell_old(file: File, reference: Reference) -> list[Edit]:
    """Inserts compat.v1 into a TensorFlow 1 name; no edits if the file imports no `tf`."""
    if reference.root is not None:
        _, end = file.source.span(reference.root)
        return [Edit(end, end, ".compat.v1")]
    text = tensorflow_of(file).spell(f"compat.v1.{reference.name}")  # for example used as `train.X`
    return [] if text is None else [file.replace(reference.node, text)]


def lend(file: File) -> tuple[str, list[Edit]]:
    """The name of portwright.tensorflow in a file, and the edits that import it.

    The import goes before anything that could load TensorFlow, since it chooses the version of Keras.
    """
    known = imported_as(file, "portwright.tensorflow")
    if known is not None:
        return known, []
    alias = file.free_name(ALIAS, "portwright_tensorflow")
    return alias, [put_early(file, f"import portwright.tensorflow as {alias}")]


def is_lent(file: File) -> bool:
    """Whether the file imports from portwright.tensorflow at its top level."""
    return any(
        b.kind == "import" and b.dotted.startswith("portwright.tensorflow")
        for bindings in file.tree.scope.bindings.values()
        for b in bindings
    )


def binds_another(file: File, name: str, dotted: str) -> bool:
    """Whether a name that a new import would define has another meaning anywhere in the file."""
    return any(
        b.dotted != dotted for scope in file.tree.scopes.values() for b in scope.bindings.get(name, ())
    )


def is_early(file: File, statement: ast.stmt) -> bool:
    return _first_that_may_load(file) is statement


def put_early(file: File, statement: str) -> Edit:
    """Inserts an import before the first that may load TensorFlow."""
    source, first = file.source, _first_that_may_load(file)
    if first is None:  # the file only imports the standard library
        body = file.tree.module.body
        _, end = source.line_span(body[-1].end_lineno or 1)
        return Edit(end, end, statement + source.newline)
    line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    start, _ = source.line_span(line)
    at = source.span(first)[0]
    if source.data[start:at].strip():  # it shares its line with another statement
        return Edit(at, at, f"{statement}; ")
    return Edit(start, start, statement + source.newline)


def _first_that_may_load(file: File) -> ast.stmt | None:
    """The first statement that is neither a docstring nor an import of the standard library."""
    for node in file.tree.module.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # also a notebook's magic
        tops = imported_tops(node)
        if not tops or not all(name in sys.stdlib_module_names for name in tops):
            return node
    return None
