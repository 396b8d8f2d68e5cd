"""Finds chains of tf.data transformations in source code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from portwright.port.rule import File
from portwright.port.tree import MethodCall, is_method_call, words

# Methods of datasets that return a dataset.
METHODS = words(
    "map batch padded_batch shuffle repeat prefetch cache interleave flat_map filter take skip shard apply unbatch zip "
    "concatenate with_options enumerate window"
)
_APPLIED = {  # for apply(tf.data.experimental.X(...)): the method that X is like
    "map_and_batch": "map_and_batch",
    "shuffle_and_repeat": "shuffle_and_repeat",
    "parallel_interleave": "interleave",
    "batch_and_drop_remainder": "batch",
    "unbatch": "unbatch",
    "bucket_by_sequence_length": "padded_batch",
    "ignore_errors": "ignore_errors",
}
_MAX_DEPTH = 40


@dataclass(frozen=True)
class Step:
    """One transformation."""

    name: str
    call: ast.Call  # of the method, or of the argument of apply()


class Pipelines:
    """The datasets of one file."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._known: dict[ast.AST, bool] = {}

    @cached_property
    def steps(self) -> list[Step]:
        """Every transformation of a value that is known to be a dataset."""
        found = []
        for name in METHODS:
            for call in self._file.methods(name):
                if self.is_dataset(call.func.value):
                    found.append(self._step(call))
        return sorted(found, key=lambda s: (s.call.lineno, s.call.col_offset))

    def before(self, step: Step) -> list[Step]:
        """The transformations before a step, last first."""
        call: ast.AST = step.call
        if not is_method_call(call, *METHODS):
            call = self._file.tree.parents[step.call]  # apply(...)
        assert is_method_call(call)
        return list(self._chain(call.func.value, call, 0))

    def chain_of(self, node: ast.expr) -> list[Step]:
        """The transformations that make an expression's value, last first."""
        return list(self._chain(node, node, 0))

    def is_dataset(self, node: ast.expr | None, depth: int = 0) -> bool:
        if node is None or depth > _MAX_DEPTH:
            return False
        if node not in self._known:
            self._known[node] = False
            self._known[node] = self._is_dataset(node, depth + 1)
        return self._known[node]

    def _is_dataset(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Call):
            return self._makes_dataset(node) or (
                is_method_call(node, *METHODS)
                and self._file.resolve(node.func) is None
                and self.is_dataset(node.func.value, depth)
            )
        if isinstance(node, ast.IfExp):
            return self.is_dataset(node.body, depth) or self.is_dataset(node.orelse, depth)
        assigned = (b.value for b in self._file.tree.bindings(node) if b.kind == "assign")
        return any(self.is_dataset(value, depth) for value in assigned)

    def _makes_dataset(self, call: ast.Call) -> bool:
        dotted = self._file.resolve(call.func) or ""
        name = dotted.removeprefix("tensorflow.").removeprefix("compat.v1.").removeprefix("compat.v2.")
        last = name.rpartition(".")[2]
        is_made = last[:1].isupper() or last.startswith(
            ("from_", "list_files", "range", "zip", "make_", "sample_")
        )
        is_data = dotted.startswith("tensorflow.") and name.startswith("data.")
        return is_data and is_made and "Iterator" not in name and last != "Options"

    def _step(self, call: MethodCall) -> Step:
        if call.func.attr == "apply" and call.args and isinstance(call.args[0], ast.Call):
            inner = call.args[0]
            last = (self._file.resolve(inner.func) or "").rpartition(".")[2]
            if last in _APPLIED:
                return Step(_APPLIED[last], inner)
        return Step(call.func.attr, call)

    def _chain(self, node: ast.expr, before: ast.AST, depth: int) -> Iterator[Step]:
        """The transformations of an expression, last first; a name is followed to the last assignment before its use."""
        if depth > _MAX_DEPTH:
            return
        if is_method_call(node):
            if node.func.attr in METHODS and self.is_dataset(node.func.value):
                yield self._step(node)
                yield from self._chain(node.func.value, before, depth + 1)
        elif isinstance(node, ast.Name):
            position = self._file.source.span(before)[0]
            statement = self._file.tree.statement_of(before)
            earlier = [
                (b.value, b.node) for b in self._file.tree.bindings(node)
                if b.kind == "assign" and b.value is not None and b.node is not statement
                and self._file.source.span(b.node)[0] < position
            ]  # fmt: skip
            if earlier:
                yield from self._chain(*earlier[-1], depth + 1)


def pipelines_of(file: File) -> Pipelines:
    return file.once(Pipelines)
