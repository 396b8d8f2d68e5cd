"""What a target runs, for people: the answer to `portwright ops`, as text and as JSON; torch is not needed for it."""

from __future__ import annotations

import difflib
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from portwright.errors import UserError
from portwright.graph.kernels import KernelTable, Row, Verdict
from portwright.graph.match import refused_in_a_step
from portwright.graph.tables import base_name, functional_name
from portwright.legal_forms import FORMS, Form, valid_targets
from portwright.target import Target

_GROUPS = {
    "native": "run by a kernel of the target",
    "decomposed": "run in parts",
    "free": "cost nothing",
    "refused": "refused",
}
_MOST_BLOCKS = 12  # more rows than this are listed in lines


@runtime_checkable
class Explains(Protocol):
    """A table that can judge an op by its name alone."""

    def explain(self, op: str) -> Verdict: ...


@dataclass(frozen=True)
class Op:
    """One row, and why it is refused where it is."""

    row: Row
    reason: str = ""
    cure: str = ""
    trained: str = ""  # why its gradient is refused, where the op itself is not

    @property
    def is_refused(self) -> bool:
        """Whether a training step with this op is refused."""
        return self.row.how == "refused" or bool(self.trained)

    def as_json(self) -> dict[str, Any]:
        row = self.row
        told: dict[str, Any] = {
            "op": row.op,
            "api": list(row.api),
            "how": row.how,
            "dtypes": list(row.dtypes),
            "constraints": list(row.constraints),
            "source": row.source,
        }
        told |= {"trained": self.trained} if self.trained else {}
        return told | ({"reason": self.reason, "cure": self.cure} if row.how == "refused" else {})


@dataclass(frozen=True)
class Answer:
    """What `portwright ops` found; `near` are names like the one that was asked for, where it has no row."""

    target: str
    label: str
    name: str
    runs_everything: bool
    ops: tuple[Op, ...]
    near: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Whether an op was asked for and no row that was found can be trained."""
        found = bool(self.ops or self.forms)
        return bool(self.name) and found and all(op.is_refused for op in self.ops)

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "label": self.label,
            "name": self.name,
            "runs_everything": self.runs_everything,
            "ops": [op.as_json() for op in self.ops],
            "near": list(self.near),
            "legal_forms": [
                {"name": f.name, "replaces": list(f.replaces), "why": f.why, "how": f.how, "source": f.source}
                for f in self.forms
            ],
        }


def find_ops(target: Target, name: str = "") -> Answer:
    """The rows of a target's table whose op or public name contains `name`, or is exactly that."""
    if target.kernels is None:
        refused = refused_in_a_step(target.needs)
        but = f"; it refuses a step that lacks {', '.join(refused)}" if refused else ""
        label = f"{target.name} runs whatever torch runs here, so it has no table{but}"
        return Answer(target.name, label, name, True, ())
    table = target.kernels()
    asked = name.strip().removesuffix("()").removeprefix("torch.ops.").replace("::", ".")
    rows = list(table.rows())
    found = _exact(rows, asked) or [
        row for row in rows if any(asked.lower() in each.lower() for each in (row.op, *row.api))
    ]
    forms = tuple(_find_forms(target, asked))
    near: tuple[str, ...] = ()
    if not found and not forms:
        near = _nearest(rows, asked)
        if not asked.startswith(
            ("aten.", "torch.", "prims.", "torchvision.")
        ):  # it cannot be an op or an API
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise UserError(
                f"the table of {target.name} has no op, layer or function like '{name}'.",
                f"{hint}portwright ops --target {target.name.lower()} lists them all.",
            )
        found = [Row(asked, (), "refused", (), (), "absent from the table")]
    ops = tuple(_with_reason(target, table, row) for row in found)
    return Answer(target.name, table.label, name, False, ops, near, forms)


def _exact(rows: Sequence[Row], asked: str) -> list[Row]:
    by_api = [row for row in rows if asked.lower() in (api.lower() for api in row.api)]
    if by_api or asked.count(".") == 0:
        return by_api
    # torch.relu, torch.Tensor.relu_ and torch.nn.functional.relu are all aten.relu
    if asked.startswith("torch."):
        asked = f"aten.{asked.rpartition('.')[2]}"
    same = [row for row in rows if functional_name(row.op) == functional_name(asked)]
    if same:
        return same
    is_whole = asked.count(".") == 1  # without an overload: all of them are meant
    return [
        row
        for row in rows
        if base_name(row.op) == base_name(asked) and (is_whole or row.op == base_name(row.op))
    ]


def _nearest(rows: Iterable[Row], asked: str) -> tuple[str, ...]:
    """Names whose last part is like the last part of what was asked for, those of the same kind first."""
    kind, _, last = asked.lower().rpartition(".")
    by_last: dict[str, dict[str, None]] = {}
    for row in rows:
        for name in (row.op, *row.api):
            by_last.setdefault(name.lower().rpartition(".")[2], {})[name] = None
    like = difflib.get_close_matches(last, by_last, n=3, cutoff=0.65)
    return tuple(
        next((name for name in by_last[n] if name.lower().rpartition(".")[0] == kind), next(iter(by_last[n])))
        for n in like
    )


def _find_forms(target: Target, asked: str) -> Iterator[Form]:
    """Legal forms of what was asked for: a name of torch's, a part of one, or an op."""
    wanted = asked.lower()
    for form in FORMS if target.name.lower() in valid_targets() else ():
        names = tuple(_long_name(name) for name in form.replaces)
        is_part = "." not in wanted and any(wanted in name.lower() for name in names)
        is_op = asked.startswith("aten.") and base_name(asked) in form.aten
        if is_part or is_op or wanted in (name.lower() for name in names):
            yield replace(form, replaces=names)


def _long_name(name: str) -> str:
    for short, long in (("nn.", "torch.nn."), ("F.", "torch.nn.functional."), ("Tensor.", "torch.Tensor.")):
        if name.startswith(short):
            return long + name.removeprefix(short)
    return name


def _with_reason(target: Target, table: KernelTable, row: Row) -> Op:
    explain = table.explain if isinstance(table, Explains) else lambda op: Verdict("refused")
    if row.how != "refused":
        gradient = f"{base_name(row.op)}_backward"
        replaced = (form.aten for form in FORMS if target.name.lower() in valid_targets())
        verdict = explain(gradient) if any(gradient in ops for ops in replaced) else Verdict("free")
        return Op(row, trained=verdict.reason if verdict.how == "refused" else "")
    verdict = explain(row.op)
    return Op(row, verdict.reason or f"{row.op} is not in the table of this target", verdict.cure)


def render(answer: Answer, width: int) -> Iterator[str]:
    """Lines for a terminal of that width."""
    width = max(width, 40)
    yield from _wrap(f"{answer.target}: {answer.label}.", width)
    if answer.runs_everything:
        return
    yield ""
    if answer.name and len(answer.ops) <= _MOST_BLOCKS:
        for op in answer.ops:
            yield from _block(f"{op.row.op}: {op.row.how}", _cells(op), width)
    else:
        yield from _listing(answer, width)
    is_short = len(answer.forms) > _MOST_BLOCKS
    if is_short:
        yield ""
        yield from _wrap(
            f"equal forms of what {answer.target} refuses, in portwright.layers.legal ({len(answer.forms)})",
            width,
        )
    for form in answer.forms:
        if is_short:
            yield from _wrap(f"for {', '.join(form.replaces)}", width, f"  {form.name:<24}")
        else:
            cells = {"for": ", ".join(form.replaces), "why": form.why, "how": form.how, "source": form.source}
            title = f"portwright.layers.legal.{form.name}: an equal form that {answer.target} takes"
            yield from _block(title, cells, width)
    if answer.near:
        yield from _wrap(f"Near it: {', '.join(answer.near)}.", width)


def _cells(op: Op) -> dict[str, str]:
    row = op.row
    return {
        "names": ", ".join(row.api),
        "dtypes": ", ".join(row.dtypes) or ("" if row.how == "refused" else "any"),
        "limits": "; ".join(row.constraints),
        "reason": op.reason,
        "trained": op.trained and f"refused: {op.trained}",
        "instead": op.cure,
        "source": row.source,
    }


def _block(title: str, cells: Mapping[str, str], width: int) -> Iterator[str]:
    yield title
    for name, text in cells.items():
        if text:
            yield from _wrap(text, width, f"  {name:<9}")
    yield ""


def _listing(answer: Answer, width: int) -> Iterator[str]:
    sources: dict[str, int] = {}
    counted = Counter(op.row.dtypes for op in answer.ops if op.row.how != "refused")
    common: tuple[str, ...] = counted.most_common(1)[0][0] if counted else ()
    if common:
        yield from _wrap(f"dtypes, where nothing else is said: {', '.join(common)}", width)
        yield ""
    column = min(max((len(op.row.op) for op in answer.ops), default=0), max(width // 3, 20)) + 2
    for how, title in _GROUPS.items():
        members = [op for op in answer.ops if op.row.how == how and not _is_gradient(op.row)]
        if members:
            yield f"{title} ({len(members)})"
        for op in sorted(members, key=lambda op: op.row.op):
            yield from _line(op, width, column, common, sources)
        if members:
            yield ""
    gradients = [
        f"{op.row.op} [{sources.setdefault(op.row.source, len(sources) + 1)}]"
        for op in answer.ops
        if _is_gradient(op.row)
    ]
    if gradients:
        yield f"gradients of these ({len(gradients)})"
        yield from _wrap(", ".join(sorted(gradients)), width, "  ")
        yield ""
    yield "sources"
    for source, number in sources.items():
        yield from _wrap(source, width, f"  [{number}] ")


def _line(op: Op, width: int, column: int, common: tuple[str, ...], sources: dict[str, int]) -> Iterator[str]:
    row = op.row
    number = sources.setdefault(row.source, len(sources) + 1)
    notes = [*row.api]
    notes += [f"limits: {'; '.join(row.constraints)}"] if row.constraints else []
    if row.how != "refused" and row.dtypes != common:
        notes.append(f"dtypes {', '.join(row.dtypes) or 'any'}")
    text = ", ".join(notes)
    text += f"{'; ' if text else ''}instead: {op.cure}" if op.cure else ""
    first = f"  {row.op}"
    if len(first) >= column + 1:
        yield first
        first = ""
    yield from _wrap(f"{text} [{number}]".strip(), width, f"{first:<{column + 2}}")


def _is_gradient(row: Row) -> bool:
    return "_backward" in row.op and not row.constraints and row.how != "refused"


def _wrap(text: str, width: int, first: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
