"""Statements as text: moved to another indentation, guarded by a condition, or with parts replaced."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from portwright.port.finding import Edit
from portwright.port.rule import File

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


class Refusal(Exception):
    """A structure that the branch's author has to look at; nothing is changed in its file."""

    def __init__(self, node: ast.AST, message: str, cure: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message
        self.cure = cure


def is_simple(statement: ast.stmt) -> bool:
    return isinstance(statement, _SIMPLE)


def indent_of(file: File, statement: ast.stmt) -> str:
    """The white space before a statement; refuses one that shares its line with others."""
    start, end = file.source.span(statement)
    line_start, line_end = file.source.line_span(statement.lineno, statement.end_lineno)
    before, after = file.source.data[line_start:start], file.source.data[end:line_end].strip()
    if before.strip() or (after and not after.startswith(b"#")):
        raise Refusal(
            statement,
            "this statement shares its line with others",
            "Give it a line of its own, then port again.",
        )
    return before.decode()


def unit_of(file: File) -> str:
    """One step of indentation, as the file has it."""
    for node in file.tree.all(ast.FunctionDef, ast.For, ast.If, ast.ClassDef, ast.With):
        outer: ast.stmt = node
        inner = node.body[0]  # type: ignore[attr-defined]
        if inner.lineno != outer.lineno and inner.col_offset > outer.col_offset:
            head = file.source.line_span(outer.lineno)[0]
            line = file.source.line_span(inner.lineno)[0]
            text = file.source.data[line : line + inner.col_offset]
            own = file.source.data[head : head + outer.col_offset]
            if text.startswith(own) and not text.strip():
                return text[len(own) :].decode()
    return "    "


def lines_in_strings(statement: ast.AST) -> set[int]:
    """Lines that begin inside a text of several lines, where white space is content."""
    inside: set[int] = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            if isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes)):
                continue
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return inside


def indented(file: File, statements: Sequence[ast.stmt], unit: str) -> str:
    """The whole lines of neighbours, one step further in."""
    first, last = statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
    fixed = {line for s in statements for line in lines_in_strings(s)}
    start, end = file.source.line_span(first, last)
    text = file.source.data[start:end].decode()
    if not text.endswith(("\n", "\r")):
        text += file.source.newline
    lines = text.splitlines(keepends=True)
    return "".join(
        line if number in fixed or not line.strip() else unit + line
        for number, line in enumerate(lines, first)
    )


def rendered(
    file: File, statement: ast.stmt, indent: str, replaced: Mapping[ast.AST, str] | None = None
) -> str:
    """A statement's text at another indentation, with some of its parts replaced."""
    old = indent_of(file, statement)
    start, end = file.source.span(statement)
    edits = []
    for node, text in (replaced or {}).items():
        if statement.lineno <= getattr(node, "lineno", -1) <= (statement.end_lineno or 0):
            low, high = file.source.span(node)
            if start <= low and high <= end:
                edits.append((low - start, high - start, text))
    data = file.source.data[start:end]
    # Replacements hold no line ends, so lines stay where they were.
    for low, high, text in sorted(edits, reverse=True):
        data = data[:low] + text.encode() + b"\n" * data[low:high].count(b"\n") + data[high:]
    fixed = lines_in_strings(statement)
    moved = []
    for number, line in enumerate(data.decode().splitlines(), statement.lineno):
        if number == statement.lineno:
            moved.append(indent + line)
        elif number in fixed:
            moved.append(line)
        elif line.strip():
            moved.append(indent + (line[len(old) :] if line.startswith(old) else line.lstrip()))
    return file.source.newline.join(moved) + file.source.newline


class Script:
    """New lines for a file, at one indentation, in the file's own style."""

    def __init__(self, file: File, indent: str = "") -> None:
        self.newline = file.source.newline
        self.unit = unit_of(file)
        self.indent = indent
        self.text = ""

    def line(self, text: str, depth: int = 0) -> Script:
        self.text += (self.indent + self.unit * depth + text if text else "") + self.newline
        return self

    def raw(self, text: str) -> Script:
        self.text += text
        return self


def insert_before(file: File, statement: ast.stmt, text: str) -> Edit:
    line = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    start, _ = file.source.line_span(line)
    return Edit(start, start, text)


def insert_after(file: File, statement: ast.stmt, text: str) -> Edit:
    indent_of(file, statement)
    _, end = file.source.line_span(statement.lineno, statement.end_lineno)
    if not file.source.data[:end].endswith((b"\n", b"\r")):
        text = file.source.newline + text
    return Edit(end, end, text)


def replace_lines(file: File, statements: Sequence[ast.stmt], text: str) -> Edit:
    for statement in statements:
        indent_of(file, statement)
    start, end = file.source.line_span(statements[0].lineno, statements[-1].end_lineno)
    return Edit(start, end, text)
