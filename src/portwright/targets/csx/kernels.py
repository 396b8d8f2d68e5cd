"""What the Cerebras front end does with an op: a kernel, a decomposition, or a refusal with its reason.

The table is a file (kernels.tsv); conditions on arguments, shapes and dtypes are in constraints.py. Both are facts about SDK
2.10.0, checked against it by tests/vendor/test_fidelity.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from portwright.graph.graph import Graph, Node, once_a_graph
from portwright.graph.kernels import Row, Verdict
from portwright.graph.tables import TableFile, base_name, functional_name
from portwright.legal_forms import cure_for
from portwright.targets.csx.constraints import CONSTRAINTS, DTYPES, find_everywhere

SDK_VERSION = "2.10.0"


@functools.cache
def table() -> CsxTable:
    return CsxTable()


@contextlib.contextmanager
def as_on_csx() -> Iterator[None]:
    """Within, mixed precision and decompositions are those of the SDK."""
    from portwright.targets.csx.casts import mixed_precision
    from portwright.targets.csx.decompositions import decompositions

    with mixed_precision(), decompositions():
        yield


class CsxTable(TableFile):
    """The kernel table of the Cerebras front end."""

    def __init__(self) -> None:
        super().__init__(
            Path(__file__).with_name("kernels.tsv"),
            CONSTRAINTS,
            f"checked against the front end of SDK {SDK_VERSION}; lowered, not placed on a wafer",
            as_on_csx,
            unlisted=_unlisted,
        )

    def rows(self) -> Iterable[Row]:
        return [_with_dtypes(row) for row in super().rows()]

    def find(self, op: str) -> Row | None:
        row = super().find(op)
        return _with_dtypes(row) if row else None

    def judge(self, graph: Graph, node: Node) -> Verdict:
        if node.phase == "optimizer":
            return Verdict("native")  # the SDK brings its own optimizers
        reason = find_everywhere(graph, node)
        if reason is not None and node.index in _find_live(graph) and node.index not in _find_constant(graph):
            return _refuse(node, reason)
        verdict = super().judge(graph, node)
        if verdict.how != "refused":
            return verdict
        if self._find(node.op) is not None and node.index not in _find_live(graph):
            return Verdict("free")  # the front end drops what nothing uses before it lowers
        return _refuse(node, verdict.reason, verdict.cure)


def _with_dtypes(row: Row) -> Row:
    """Adds the constraint on dtypes that holds for every op and is not in the file's rows."""
    return row if row.how == "refused" else replace(row, dtypes=row.dtypes or DTYPES)


def _unlisted(op: str) -> tuple[str, str]:
    name = functional_name(op).removesuffix(".default").replace(".", "::", 1)
    return f'it has no kernel: "The Cerebras backend does not yet support `{name}`"', ""


def _refuse(node: Node, reason: str, cure: str = "") -> Verdict:
    return Verdict("refused", reason, cure or _cure_for(node.call) or _cure_for(base_name(node.op)))


@functools.cache
def _cure_for(name: str) -> str:
    """The legal form of what the user called, or of the op that it became."""
    short = re.sub(r"^torch\.nn\.modules\.\w+\.", "torch.nn.", name)
    return (cure_for(short, "csx") or "") if name else ""


@once_a_graph
def _find_live(graph: Graph) -> frozenset[int]:
    """The nodes whose result is used: the loss, writes to weights or buffers, or the ends of the backward pass depend on them."""
    if graph.loss < 0:
        return frozenset(node.index for node in graph.nodes)
    wanted = {graph.loss, graph.values[graph.loss].base}
    used = {value for node in graph.nodes for value in node.inputs}
    live: set[int] = set()
    for node in reversed(graph.nodes):
        is_end = node.phase != "forward" and not any(value in used for value in node.outputs)
        bases = {graph.values[value].base for value in node.outputs}
        keeps = any(graph.values[base].kind in ("parameter", "buffer") for base in bases)
        if is_end or keeps or any(value in wanted for value in node.outputs) or bases & wanted:
            live.add(node.index)
            wanted.update(node.inputs)
            wanted.update(graph.values[value].base for value in node.inputs)
    return frozenset(live)


_MADE_OF_SHAPES = frozenset(
    f"aten.{name}"
    for name in (
        [
            "empty_like",
            "zeros_like",
            "ones_like",
            "full_like",
            "new_empty",
            "new_empty_strided",
            "new_zeros",
            "new_ones",
            "new_full",
        ]
    )
)
_RANDOM = frozenset(
    f"aten.{name}" for name in ["rand", "randn", "randint", "randperm", "normal", "bernoulli"]
)


@once_a_graph
def _find_constant(graph: Graph) -> frozenset[int]:
    """The nodes that the compiler folds: they depend on no input, weight or random number."""
    constant: set[int] = set()
    values: set[int] = set()
    for node in graph.nodes:
        name = base_name(node.op)
        if name in _RANDOM:
            continue
        if name in _MADE_OF_SHAPES or all(value in values for value in node.inputs):
            constant.add(node.index)
            values.update(node.outputs)
    return frozenset(constant)
