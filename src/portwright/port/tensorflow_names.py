"""What a file's names mean in TensorFlow, and whether it is written for TensorFlow 1."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from portwright.port.finding import Edit
from portwright.port.rule import File
from portwright.port.tensorflow_v1 import ROWS
from portwright.port.tree import dotted_chain

Kind = Literal["gone", "module", "other", "arguments"]
_GENERATIONS = ("compat.v1.", "compat.v2.")
_BASES = {"tensorflow": "", "tensorflow.compat.v1": "compat.v1.", "tensorflow.compat.v2": "compat.v2."}
ALIAS = "ptf"


@dataclass(frozen=True)
class Row:
    """What became of one name of TensorFlow 1."""

    kind: Kind
    shared: int = 0  # leading arguments that are the same in both
    keywords: frozenset[str] = frozenset()


@cache
def table() -> dict[str, Row]:
    found = {}
    for line in ROWS.splitlines():
        name, kind, shared, keywords = (*line.split("\t"), "", "")[:4]
        found[name] = Row(kind, int(shared or 0), frozenset(keywords.split()))  # type: ignore[arg-type]
    return found


def row_of(name: str) -> Row | None:
    """The row of a name below `tf`, or of the gone module that it is in."""
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
    """Whether tf.compat.v1 has a name only where TensorFlow comes with the legacy Keras."""
    return name in ("layers", "nn.rnn_cell") or name.startswith(
        (
            "layers.",
            "nn.rnn_cell.",
            "nn.dynamic_rnn",
            "nn.static_rnn",
            "nn.bidirectional_dynamic_rnn",
            "nn.static_bidirectional",
        )
    )


@dataclass(frozen=True)
class Reference:
    """One place that names something of TensorFlow's."""

    node: ast.expr
    name: str  # below `tf`, without compat.v1
    generation: str  # "", "compat.v1." or "compat.v2.": how it is reached
    root: ast.Name | None  # what `tf` is called there; None where the name was imported by itself


class TensorFlowNames:
    """Every name of TensorFlow's in a file."""

    def __init__(self, file: File) -> None:
        self._file = file

    @cached_property
    def references(self) -> list[Reference]:
        """In the order of the text; of `tf.a.b` the whole, not its parts."""
        found = [r for node in self._outermost() if (r := self._refer(node)) is not None]
        return sorted(found, key=lambda r: (r.node.lineno, r.node.col_offset))

    def named(self, *names: str) -> list[Reference]:
        """References to these names; one that ends with `.` stands for all below it."""
        exact = frozenset(names)
        below = tuple(n for n in names if n.endswith("."))
        return [r for r in self.references if r.name in exact or (below and r.name.startswith(below))]

    def calls(self, *names: str) -> list[tuple[ast.Call, str]]:
        """Calls of these names, each with the name that is called."""
        parents = self._file.tree.parents
        return [
            (call, r.name)
            for r in self.named(*names)
            if isinstance(call := parents.get(r.node), ast.Call) and call.func is r.node
        ]

    @cached_property
    def imports(self) -> list[tuple[ast.ImportFrom, ast.alias, str]]:
        """`from tensorflow... import name`: the statement, its part, and the full name below tf with its generation."""
        return [
            (node, alias, f"{node.module}.{alias.name}".removeprefix("tensorflow."))
            for node in self._file.tree.all(ast.ImportFrom)
            if not node.level and node.module and node.module.partition(".")[0] == "tensorflow"
            for alias in node.names
        ]

    def spell(self, name: str) -> str | None:
        """A name below `tf`, by what `tf` is called at the top of this file; None where it is not imported there."""
        for bound, bindings in self._file.tree.scope.bindings.items():
            base = (
                _BASES.get(bindings[0].dotted)
                if bindings[0].kind == "import" and not bindings[0].level
                else None
            )
            if base is None or (not base and bindings[0].dotted != bound and "." in bound):
                continue
            if base == "compat.v1.":
                return f"{bound}.{name.removeprefix(base)}"
            if not base:
                return f"{bound}.{name}"
        return None

    @cached_property
    def is_version_1(self) -> bool:
        """Whether the file uses what only TensorFlow 1 has under these names."""
        for _, _, name in self.imports:
            row = row_of(name)
            if name.partition(".")[0] == "contrib" or (row is not None and row.kind in ("gone", "module")):
                return True
        for reference in self.references:
            if reference.generation:
                continue
            if reference.name.partition(".")[0] == "contrib":
                return True
            row = row_of(reference.name)
            if row is None:
                continue
            if row.kind in ("gone", "module") and reference.root is not None:
                return True
            if row.kind == "arguments" and self._has_gone_keyword(reference, row):
                return True
        return False

    def needs_version_1(self, reference: Reference) -> bool:
        """Whether a name means what it did only under tf.compat.v1, in a file that is written for TensorFlow 1."""
        row = row_of(reference.name)
        if row is None or reference.generation:
            return False
        if row.kind != "arguments":
            return True
        call = self._file.tree.parents.get(reference.node)
        if not isinstance(call, ast.Call) or call.func is not reference.node:
            return True  # handed on, to be called with whatever arguments
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            return True
        return len(call.args) > row.shared or any(k.arg not in row.keywords for k in call.keywords)

    def _has_gone_keyword(self, reference: Reference, row: Row) -> bool:
        call = self._file.tree.parents.get(reference.node)
        gone = {
            "keep_dims",
            "reduction_indices",
            "keep_prob",
            "dimension",
            "squeeze_dims",
            "dim",
        } - row.keywords
        return (
            isinstance(call, ast.Call)
            and call.func is reference.node
            and any(k.arg in gone for k in call.keywords)
        )

    def _outermost(self) -> Iterator[ast.expr]:
        parents = self._file.tree.parents
        for attribute in self._file.tree.all(ast.Attribute):
            parent = parents.get(attribute)
            if not (isinstance(parent, ast.Attribute) and parent.value is attribute):
                yield attribute
        for name in self._file.tree.all(ast.Name):
            parent = parents.get(name)
            if isinstance(name.ctx, ast.Load) and not (
                isinstance(parent, ast.Attribute) and parent.value is name
            ):
                yield name

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


def lend(file: File) -> tuple[str, list[Edit]]:
    """What portwright.tensorflow is called in a file, and the import that this takes.

    It stands before the first import of anything that could load TensorFlow, since it chooses the Keras that comes with it.
    """
    for name, bindings in file.tree.scope.bindings.items():
        if any(b.kind == "import" and b.dotted == "portwright.tensorflow" for b in bindings):
            return name, []
    alias = ALIAS if not file.binds(ALIAS) else "portwright_tensorflow"
    return alias, [put_early(file, f"import portwright.tensorflow as {alias}")]


def is_lent(file: File) -> bool:
    """Whether something of portwright.tensorflow is imported at the file's top level."""
    return any(
        b.kind == "import" and b.dotted.startswith("portwright.tensorflow")
        for bindings in file.tree.scope.bindings.values()
        for b in bindings
    )


def is_early(file: File, statement: ast.stmt) -> bool:
    return _first_that_may_load(file) is statement


def put_early(file: File, statement: str) -> Edit:
    """Inserts an import before the first that may load TensorFlow."""
    source, first = file.source, _first_that_may_load(file)
    if first is None:  # nothing but imports of the standard library
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
    """The first statement that is not a docstring, nor an import of the standard library's."""
    for node in file.tree.module.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # also a notebook's magic
        if isinstance(node, (ast.Import, ast.ImportFrom)) and all(
            name in sys.stdlib_module_names for name in _tops(node)
        ):
            continue
        return node
    return None


def _tops(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").partition(".")[0] if not node.level else ""]
    return [alias.name.partition(".")[0] for alias in node.names]
