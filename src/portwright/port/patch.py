"""Rewrites one file: the edits of its findings, round after round, until none is left to make."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from portwright.port.check import Selection, as_seen, find
from portwright.port.finding import Edit, Finding, Safety
from portwright.port.project import Project
from portwright.port.source import Source, UnreadableError

_MAX_ROUNDS = 200


@dataclass(frozen=True)
class Patch:
    """A file before and after; equal where nothing was to be done."""

    before: Source
    after: Source
    fixed: list[Finding] = field(default_factory=list)  # places in the file before
    left: list[Finding] = field(default_factory=list)  # places in the file after

    @property
    def is_change(self) -> bool:
        return self.before.data != self.after.data


def make_patch(source: Source, project: Project, selection: Selection, allow: Sequence[Safety]) -> Patch:
    """All edits that `allow` permits, or none: whatever happens, the result parses.

    Raises UnreadableError where the file cannot be parsed to begin with.
    """
    current, refused = source, set[tuple[str, str]]()
    fixed: list[Finding] | None = None
    for _ in range(_MAX_ROUNDS):
        found = find(current, project, selection)
        wanted = [
            f
            for f in found
            if f.edits and f.safety in allow and (f.code, _text_of(current, f)) not in refused
        ]
        wanted = _without_replaced(wanted)
        if fixed is None:
            fixed = [as_seen(source, f) for f in wanted]
        else:
            fixed += _later(source, current, wanted, {f.code for f in fixed})
        if not wanted:
            left = [as_seen(current, f) for f in found]
            return Patch(source, current, fixed, left)
        after = _apply(current, _compatible(wanted))
        if after is None:
            # Two edits that are right alone can be wrong together, as when both empty one block: one at a time.
            after = _apply(current, wanted[:1])
        if after is None or after.data == current.data:
            refused.add((wanted[0].code, _text_of(current, wanted[0])))
            continue
        current = after
    # Edits that feed each other for ever: none of them is made.
    left = [as_seen(source, f) for f in find(source, project, selection)]
    return Patch(source, source, [], left)


def places_before(patch: Patch) -> list[Finding]:
    """What is left in the file after, where a person sees it in the file before."""
    before, after = patch.before, patch.after
    origin = _origins(before, after)
    places = {line: after.place(line, 1) for line in range(1, len(after.line_starts) + 1)}
    moved = []
    for finding in patch.left:
        for line, (seen, _, where) in places.items():
            if seen == finding.line and finding.message.startswith(where):
                first = max((o for at, o in origin.items() if at <= line), default=1)
                message = finding.message.removeprefix(where)
                moved.append(as_seen(before, replace(finding, line=first, end_line=first, message=message)))
                break
        else:
            moved.append(finding)
    return moved


def _origins(before: Source, current: Source) -> dict[int, int]:
    """For lines that stayed, or were rewritten line by line, the lines that they were."""
    matcher = difflib.SequenceMatcher(
        None, current.text.splitlines(), before.text.splitlines(), autojunk=False
    )
    found: dict[int, int] = {}
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and a1 - a0 == b1 - b0):
            found |= {a0 + i + 1: b0 + i + 1 for i in range(a1 - a0)}
    return found


def _without_replaced(findings: Sequence[Finding]) -> list[Finding]:
    replaced = {(f.instead_of, f.line, f.column) for f in findings if f.instead_of}
    return [f for f in findings if (f.code, f.line, f.column) not in replaced]


def _later(before: Source, current: Source, wanted: Sequence[Finding], known: set[str]) -> list[Finding]:
    """Findings of rules that had nothing to say at first, at the lines that theirs come from."""
    new = [f for f in wanted if f.code not in known]
    if not new:
        return []
    origin = _origins(before, current)
    seen = []
    for finding in new:
        line = max((o for at, o in origin.items() if at <= finding.line), default=1)
        seen.append(as_seen(before, replace(finding, line=line, end_line=line)))
    return seen


def _text_of(source: Source, finding: Finding) -> str:
    start, end = min(e.start for e in finding.edits), max(e.end for e in finding.edits)
    return source.data[start:end].decode("utf-8")


def _compatible(findings: Sequence[Finding]) -> list[Finding]:
    """As many findings as fit together, those of outer expressions waiting for inner ones."""
    taken: list[Edit] = []
    chosen = []
    for finding in sorted(findings, key=lambda f: (sum(e.end - e.start for e in f.edits), f.edits)):
        if not any(_overlap(edit, other) for edit in finding.edits for other in taken):
            chosen.append(finding)
            taken += finding.edits
    return chosen


def _overlap(one: Edit, other: Edit) -> bool:
    if one.start == one.end or other.start == other.end:
        return one.start <= other.end and other.start <= one.end
    return one.start < other.end and other.start < one.end


def _apply(source: Source, findings: Sequence[Finding]) -> Source | None:
    """The text with these findings' edits and imports; None where it would not parse."""
    edits = [edit for finding in findings for edit in finding.edits]
    wanted = sorted({statement for finding in findings for statement in finding.imports})
    try:
        module = source.parse()
        missing = [statement for statement in wanted if not _has_statement(module, statement)]
        if missing:
            edits.append(_insert_imports(source, module, missing))
        after = source.with_edits(edits)
        after.parse()
    except UnreadableError:
        return None
    return after


def _has_statement(module: ast.Module, statement: str) -> bool:
    wanted = ast.dump(ast.parse(statement).body[0])
    return any(
        ast.dump(node) == wanted for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))
    )


def _insert_imports(source: Source, module: ast.Module, statements: Sequence[str]) -> Edit:
    """After the file's leading imports, before anything that could use them."""
    after: ast.stmt | None = None
    for position, node in enumerate(module.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            after = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            after = node if position == 0 and isinstance(node.value.value, str) else after
        elif not isinstance(node, (ast.Try, ast.If)) or not _only_imports(node):
            break
    if after is None:
        # Constants are the magics of a notebook, of which the first has to stay the first of its cell.
        first = next(
            n for n in module.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        )
        line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        start, _ = source.line_span(line)
        return Edit(start, start, "".join(statement + source.newline for statement in statements))
    line = after.end_lineno or after.lineno
    while True:  # `import torch; x = (` goes on below
        reach = max((n.end_lineno or 0 for n in module.body if n.lineno <= line), default=line)
        if reach <= line:
            break
        line = reach
    start, end = source.line_span(line)
    end = start + len(source.data[start:end].rstrip(b"\r\n"))  # a notebook's cell may end here
    return Edit(end, end, "".join(source.newline + statement for statement in statements))


def _only_imports(node: ast.Try | ast.If) -> bool:
    """A guarded import, behind which more imports may follow."""
    blocks = [node.body, node.orelse, *(h.body for h in getattr(node, "handlers", []))]
    return all(
        isinstance(s, (ast.Import, ast.ImportFrom, ast.Pass, ast.Assign, ast.Raise, ast.Expr))
        for b in blocks
        for s in b
    )
