"""Rewrites one file: applies the edits of its findings in rounds, until none is left."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from portwright.port.check import Selection, as_seen, find
from portwright.port.finding import Edit, Finding, Safety
from portwright.port.project import Project
from portwright.port.source import Source, UnreadableError
from portwright.port.tree import imported_tops

_MAX_ROUNDS = 200


@dataclass(frozen=True)
class Patch:
    """A file before and after its rewrites."""

    before: Source
    after: Source
    fixed: list[Finding] = field(default_factory=list)  # places in the file before
    left: list[Finding] = field(default_factory=list)  # places in the file after

    @property
    def is_change(self) -> bool:
        return self.before.data != self.after.data


def make_patch(source: Source, project: Project, selection: Selection, allow: Sequence[Safety]) -> Patch:
    """Makes all edits that `allow` permits; the result always parses.

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
        if fixed is None:
            fixed = [as_seen(source, f) for f in wanted]
        else:
            fixed += _later(source, current, wanted, {f.code for f in fixed})
        if not wanted:
            left = [as_seen(current, f) for f in found]
            return Patch(source, current, fixed, left)
        after = _apply(current, _compatible(wanted))
        if after is None:
            # Edits can be wrong together, as when both empty one block: make one at a time.
            after = _apply(current, wanted[:1])
        if after is None or after.data == current.data:
            refused.add((wanted[0].code, _text_of(current, wanted[0])))
            continue
        current = after
    # The edits never end: make none.
    left = [as_seen(source, f) for f in find(source, project, selection)]
    return Patch(source, source, [], left)


def places_before(patch: Patch) -> list[Finding]:
    """The findings left in the rewritten file, with lines of the original."""
    before, after = patch.before, patch.after
    origin = _original_lines(before, after)
    places = {line: after.place(line, 1) for line in range(1, len(after.line_starts) + 1)}
    moved = []
    for finding in patch.left:
        for line, (seen, _, where) in places.items():
            if seen == finding.line and finding.message.startswith(where):
                plain = replace(finding, line=line, message=finding.message.removeprefix(where))
                moved.append(_seen_before(before, plain, origin))
                break
        else:
            moved.append(finding)
    return moved


def _seen_before(before: Source, finding: Finding, origin: dict[int, int]) -> Finding:
    """A finding of the current text at the line of the original that it comes from."""
    line = max((o for at, o in origin.items() if at <= finding.line), default=1)
    return as_seen(before, replace(finding, line=line, end_line=line))


def _original_lines(before: Source, current: Source) -> dict[int, int]:
    """Maps lines of the current text to lines of the original, for lines kept or rewritten one by one."""
    matcher = difflib.SequenceMatcher(
        None, current.text.splitlines(), before.text.splitlines(), autojunk=False
    )
    found: dict[int, int] = {}
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and a1 - a0 == b1 - b0):
            found |= {a0 + i + 1: b0 + i + 1 for i in range(a1 - a0)}
    return found


def _later(before: Source, current: Source, wanted: Sequence[Finding], known: set[str]) -> list[Finding]:
    """Findings of rules that found nothing in earlier rounds, with lines of the original."""
    new = [f for f in wanted if f.code not in known]
    origin = _original_lines(before, current) if new else {}
    return [_seen_before(before, finding, origin) for finding in new]


def _text_of(source: Source, finding: Finding) -> str:
    start, end = min(e.start for e in finding.edits), max(e.end for e in finding.edits)
    return source.data[start:end].decode("utf-8")


def _compatible(findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose edits do not overlap; inner expressions come before outer ones."""
    taken: list[Edit] = []
    chosen = []
    for finding in sorted(findings, key=lambda f: (sum(e.end - e.start for e in f.edits), f.edits)):
        if not any(_overlap(edit, other) for edit in finding.edits for other in taken):
            chosen.append(finding)
            taken += finding.edits
    return chosen


def _overlap(one: Edit, other: Edit) -> bool:
    if _is_line_beside(one, other) or _is_line_beside(other, one):
        return False
    inserts = one.start == one.end or other.start == other.end
    first, last = max(one.start, other.start), min(one.end, other.end)
    return first <= last if inserts else first < last


def _is_line_beside(one: Edit, other: Edit) -> bool:
    """Whether an edit inserts whole statements right before or after the text that another replaces, which is no overlap."""
    if one.start != one.end or other.start == other.end:
        return False
    is_before = one.start == other.start and one.text.endswith(("\n", "; "))
    return is_before or (one.start == other.end and one.text.startswith(("\n", "\r", "; ")))


def _apply(source: Source, findings: Sequence[Finding]) -> Source | None:
    """Makes the edits and imports of findings; None if the result does not parse."""
    edits = [edit for finding in findings for edit in finding.edits]
    wanted = sorted({statement for finding in findings for statement in finding.imports})
    try:
        module = source.parse()
        missing = [statement for statement in wanted if not _has_statement(module, statement)]
        if missing:
            edits.append(_insert_imports(source, module, missing, min(edit.start for edit in edits)))
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


def _insert_imports(source: Source, module: ast.Module, statements: Sequence[str], first_use: int) -> Edit:
    """Inserts after the file's leading imports, before the first use.

    Code before the first import of torch may set how torch is loaded (`os.environ["OMP_NUM_THREADS"] = "1"`), so new
    imports, which load torch too, go after that one.
    """
    after: ast.stmt | None = None
    loads = next(
        (n for n in module.body if "torch" in imported_tops(n) and source.span(n)[1] <= first_use), None
    )
    for position, node in enumerate(module.body):
        if loads is not None:
            loads, after = (None if node is loads else loads), node
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            after = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            after = node if position == 0 and isinstance(node.value.value, str) else after
        elif not isinstance(node, (ast.Try, ast.If)) or not _only_imports(node):
            break
    if after is None:
        # Constants are magics of a notebook; a magic at the start of a cell has to stay there.
        first = next(
            n for n in module.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        )
        line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        start, _ = source.line_span(line)
        return Edit(start, start, "".join(statement + source.newline for statement in statements))
    line = after.end_lineno or after.lineno
    while True:  # skips the rest of `import torch; x = (`
        reach = max((n.end_lineno or 0 for n in module.body if n.lineno <= line), default=line)
        if reach <= line:
            break
        line = reach
    start, end = source.line_span(line)
    end = start + len(source.data[start:end].rstrip(b"\r\n"))  # a notebook's cell may end here
    return Edit(end, end, "".join(source.newline + statement for statement in statements))


def _only_imports(node: ast.Try | ast.If) -> bool:
    """Whether a try or if only guards imports, so that more imports may follow."""
    blocks = [node.body, node.orelse, *(h.body for h in getattr(node, "handlers", []))]
    return all(
        isinstance(s, (ast.Import, ast.ImportFrom, ast.Pass, ast.Assign, ast.Raise, ast.Expr))
        for b in blocks
        for s in b
    )
