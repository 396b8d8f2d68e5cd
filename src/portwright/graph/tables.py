"""Kernel tables kept as TSV files: strict loading, and lookup of an op under each of its names.

A file has the columns op, api, how, dtypes, constraints and source; cells with several words are separated by spaces, and a
line that starts with '#' is a comment. A refused row may say why and what to use instead in the columns reason and cure.
Nothing here imports torch, so that `portwright ops` answers at once.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from portwright.errors import UserError, suggest
from portwright.graph.graph import ITEM_BYTES, Graph, Node
from portwright.graph.kernels import Constraint, How, Row, Verdict

_COLUMNS = ("op", "api", "how", "dtypes", "constraints", "source")
_REFUSAL_COLUMNS = ("reason", "cure")
_OP = re.compile(r"[A-Za-z]\w*\.\w+(\.\w+)?")

# Views that torch also has as a copy, named *_copy; index_copy and _to_copy are no such copies.
_VIEWS = frozenset(
    (
        "_conj",
        "_indices",
        "_neg_view",
        "_values",
        "alias",
        "as_strided",
        "ccol_indices",
        "col_indices",
        "crow_indices",
        "detach",
        "diagonal",
        "expand",
        "indices",
        "lift_fresh",
        "narrow",
        "permute",
        "row_indices",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "values",
        "view",
        "view_as_complex",
        "view_as_real",
    )
)
_OTHER_SPELLINGS = {
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "_index_put_impl": "index_put",
    "_reshape_alias": "view",
    "_reshape_alias_copy": "view",
    "_reshape_copy": "view",
    "_unsafe_index": "index",
    "_unsafe_index_put": "index_put",
    "_unsafe_view": "view",
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes",
}


@cache
def functional_name(op: str) -> str:
    """The op's name without variants that use the same kernel: in place, writing to `out`, a copy instead of a view.

    'aten.add_.Tensor', 'aten.add.out' and 'aten.view_copy.default' become 'aten.add.Tensor', 'aten.add.default' and
    'aten.view.default'; an op given without its overload stays so.
    """
    space, _, rest = op.partition(".")
    name, dot, overload = rest.partition(".")
    if name.startswith("__i") and name.endswith("__"):
        name = f"__{name[3:]}"
    elif name.endswith("_") and not name.startswith("__"):
        name = name[:-1]
    if name.endswith("_copy") and name[: -len("_copy")] in _VIEWS:
        name = name[: -len("_copy")]
    name = _OTHER_SPELLINGS.get(name, name)
    if overload in ("out", "all_out", "grad_input", f"{name}_out"):
        overload = "default"
    return f"{space}.{name}{dot}{overload.removesuffix('_out')}"


@cache
def base_name(op: str) -> str:
    """The functional op without its overload: 'aten.add' of 'aten.add_.Tensor'."""
    return ".".join(functional_name(op).split(".")[:2])


def argument(node: Node, name: str, position: int, default: Any = None) -> Any:
    """What a node was called with, by keyword or by position; `default` where the caller left it out."""
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[position] if position < len(node.args) else default


@dataclass(frozen=True, slots=True)
class _Entry:
    row: Row
    checks: tuple[str, ...]
    reason: str
    cure: str


class TableFile:
    """A kernel table read from a file; what is not in it is refused.

    A constraint's docstring is its text for people. `cures` says what to do about a constraint, by its name.
    `unlisted` says why an op has no row, and what to do.
    """

    def __init__(
        self,
        path: Path,
        constraints: Mapping[str, Constraint],
        label: str,
        casts: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        *,
        cures: Mapping[str, str] | None = None,
        unlisted: Callable[[str], tuple[str, str]] | None = None,
    ) -> None:
        self.path, self.label, self._casts = path, label, casts
        self._constraints, self._cures = constraints, cures or {}
        self._unlisted = unlisted or (lambda op: (f"{op} is not in the table of this target", ""))
        for name in self._cures:
            if name not in constraints:
                raise UserError(
                    f"{path}: a cure is given for '{name}', which is no constraint.",
                    suggest(name, constraints),
                )
        self._entries: dict[str, _Entry] = {}
        for number, cells in _read(path):
            entry = self._make_entry(f"{path}:{number}", cells)
            key = functional_name(entry.row.op)
            if key in self._entries:
                raise UserError(
                    f"{path}:{number}: {entry.row.op} has a row already ({self._entries[key].row.op}).",
                    "Merge the two.",
                )
            self._entries[key] = entry

    def rows(self) -> Iterable[Row]:
        return [entry.row for entry in self._entries.values()]

    def casts(self) -> AbstractContextManager[Any]:
        return self._casts()

    def find(self, op: str) -> Row | None:
        """The row of an op: that of its overload if there is one, else that of all its overloads."""
        entry = self._find(op)
        return entry.row if entry else None

    def explain(self, op: str) -> Verdict:
        """The verdict on an op whose arguments are not known."""
        entry = self._find(op)
        if entry is None:
            return Verdict("refused", *self._unlisted(op))
        if entry.row.how == "refused":
            return Verdict("refused", entry.reason or f"{op} is refused by this target", entry.cure)
        return Verdict(entry.row.how)

    def judge(self, graph: Graph, node: Node) -> Verdict:
        entry = self._find(node.op)
        if entry is None or entry.row.how == "refused":
            return self.explain(node.op)
        for name in entry.checks:
            reason = self._constraints[name](graph, node)
            if reason is not None:
                return Verdict("refused", reason, self._cures.get(name, ""))
        if entry.row.dtypes:
            for value in (*graph.input_values(node), *graph.output_values(node)):
                if value.dtype not in entry.row.dtypes:
                    listed = ", ".join(entry.row.dtypes)
                    return Verdict(
                        "refused",
                        f"{node.op} is not supported on {value.dtype}",
                        f"Use one of {listed}.",
                    )
        return Verdict(entry.row.how)

    def _find(self, op: str) -> _Entry | None:
        name = functional_name(op)
        return self._entries.get(name) or self._entries.get(base_name(name))

    def _make_entry(self, place: str, cells: Mapping[str, str]) -> _Entry:
        op, how = cells["op"], cells["how"]
        if not _OP.fullmatch(op):
            raise UserError(
                f"{place}: '{op}' is no op.", "Write it as aten.add, or aten.add.Tensor for one overload."
            )
        if how not in get_args(How):
            raise UserError(f"{place}: {op} has how '{how}'.", suggest(how, get_args(How)))
        dtypes, checks = tuple(cells["dtypes"].split()), tuple(cells["constraints"].split())
        for dtype in dtypes:
            if dtype not in ITEM_BYTES:
                raise UserError(f"{place}: {op} has the dtype '{dtype}'.", suggest(dtype, ITEM_BYTES))
        for name in checks:
            if name not in self._constraints:
                raise UserError(
                    f"{place}: {op} has the unknown constraint '{name}'.", suggest(name, self._constraints)
                )
        reason, cure = cells.get("reason", ""), cells.get("cure", "")
        if how != "refused" and (reason or cure):
            raise UserError(
                f"{place}: {op} is {how}, yet has a reason or a cure.", "Only refused rows have them."
            )
        if not cells["source"]:
            raise UserError(f"{place}: {op} has no source.", "Say where the row is known from.")
        words = tuple(_words(name, self._constraints[name], place) for name in checks)
        row = Row(op, tuple(cells["api"].split()), how, dtypes, words, cells["source"])  # type: ignore[arg-type]
        return _Entry(row, checks, reason, cure)


class OwnTrainingTable(TableFile):
    """A table of software that makes gradients itself and has optimizers of its own.

    A backward op is judged by the forward op whose gradient it is, and the optimizer by its name.
    """

    optimizers: tuple[str, ...]
    no_optimizer: tuple[str, str]  # the reason to refuse another one, with {} for its name; and the cure

    def judge(self, graph: Graph, node: Node) -> Verdict:
        if node.phase == "optimizer":
            if graph.optimizer.lower() in ("", *(name.lower() for name in self.optimizers)):
                return Verdict("native")
            reason, cure = self.no_optimizer
            return Verdict("refused", reason.format(graph.optimizer), cure)
        if node.phase == "backward":
            # One without a forward op manages gradients, which the software does itself.
            return self.judge(graph, graph.nodes[node.forward]) if node.forward >= 0 else Verdict("native")
        return super().judge(graph, node)


def _words(name: str, constraint: Constraint, place: str) -> str:
    words = (constraint.__doc__ or "").strip().split("\n")[0].rstrip(".")
    if not words:
        raise UserError(
            f"{place}: the constraint '{name}' does not say what it asks for.", "Give it a docstring."
        )
    return words


def _read(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter="\t", quoting=csv.QUOTE_NONE))]
        if header is None:
            header = cells
            if cells not in ([*_COLUMNS], [*_COLUMNS, *_REFUSAL_COLUMNS]):
                raise UserError(
                    f"{path}:{number}: the columns are {', '.join(cells)}.",
                    f"They must be {', '.join(_COLUMNS)}, and where wanted {', '.join(_REFUSAL_COLUMNS)}.",
                )
        elif len(cells) != len(header):
            raise UserError(
                f"{path}:{number}: {len(cells)} cells instead of {len(header)}.", "Separate them by tabs."
            )
        else:
            yield number, dict(zip(header, cells, strict=True))
