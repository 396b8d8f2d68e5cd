"""Reads a notebook's code cells as one text, in which magics become comments of the same length."""

from __future__ import annotations

import ast
import bisect
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from portwright.port.finding import Edit
from portwright.port.source import Source, UnreadableError, apply_edits

_MAGIC = re.compile(
    rb"^[ \t]*(?:[\w.,\[\] ]+=[ \t]*)?([!%?][^\n]*?|[A-Za-z_][\w.]*\?\??)[ \t]*$", re.MULTILINE
)
_NOT_PYTHON = re.compile(rb"\A\s*%%(?!time\b|timeit\b|capture\b|prun\b|python3?\b)")
_LINE = re.compile(rb"^[^\n]+", re.MULTILINE)
_STYLES = [
    {"indent": indent, "ensure_ascii": ascii_only, "separators": separators}
    for ascii_only in (False, True)
    for indent, separators in (
        (1, (",", ": ")),
        (2, (",", ": ")),
        (4, (",", ": ")),
        (None, (", ", ": ")),
        (None, (",", ":")),
    )
]


@dataclass(frozen=True)
class Notebook(Source):
    """The code cells of one .ipynb; a newline that is not part of the cell is added to each."""

    document: str = ""
    cells: tuple[tuple[int, int], ...] = ()  # index in the document, first byte in the text

    @cached_property
    def code(self) -> bytes:
        cells = [_hide_magics(self.data[start:end]) for start, end in self._spans()]
        whole = b"".join(cells)
        if self._error(whole) is None:
            return whole
        # Comments out cells that are not Python, to check the others.
        return b"".join(cell if self._error(cell) is None else _comment_out(cell) for cell in cells)

    @cached_property
    def problems(self) -> list[UnreadableError]:
        """Errors of the cells that are not Python, with lines in the text."""
        found = []
        for start, end in self._spans():
            error = self._error(_hide_magics(self.data[start:end]))
            if error is not None:
                first = bisect.bisect_right(self.line_starts, start)
                found.append(
                    UnreadableError(
                        str(error), min(first + error.line - 1, len(self.line_starts)), error.column
                    )
                )
        return found

    def _spans(self) -> list[tuple[int, int]]:
        starts = [start for _, start in self.cells]
        ends = [*starts[1:], len(self.data)] if starts else []  # a notebook may have no code
        return list(zip(starts, ends, strict=True))

    def _error(self, code: bytes) -> UnreadableError | None:
        try:
            Source(self.path, code, flags=self.flags).parse()
        except UnreadableError as error:
            return error
        return None

    def place(self, line: int, column: int) -> tuple[int, int, str]:
        offset = self.line_starts[line - 1]
        number = bisect.bisect_right([start for _, start in self.cells], offset) - 1
        if number < 0:
            return line, column, ""
        first = bisect.bisect_right(self.line_starts, self.cells[number][1])
        return line - first + 1, column, f"cell {self.cells[number][0] + 1}: "

    def with_edits(self, edits: Iterable[Edit]) -> Source:
        edits = list(edits)
        moved = []
        for index, start in self.cells:
            before = [edit for edit in edits if edit.start < start]
            grown = sum(len(edit.text.encode()) - (edit.end - edit.start) for edit in before)
            moved.append((index, start + grown))
        return replace(self, data=apply_edits(self.data, edits), cells=tuple(moved))

    def to_bytes(self) -> bytes:
        notebook = json.loads(self.document)
        style = _style_of(self.document, notebook)
        for (index, _), (start, end) in zip(self.cells, self._spans(), strict=True):
            cell = notebook["cells"][index]
            text = self.data[start : end - 1].decode("utf-8")
            if text == _cell_text(cell):
                continue
            cell["source"] = text.splitlines(keepends=True) if isinstance(cell["source"], list) else text
        if style is None:
            if json.loads(self.document) == notebook:
                return self.document.encode("utf-8")
            raise UnreadableError(
                "its JSON has an unusual layout that cannot be written back: save it in Jupyter first"
            )
        tail = self.document[len(self.document.rstrip()) :]
        return (json.dumps(notebook, **style) + tail).encode("utf-8")


def read_notebook(path: Path, raw: bytes) -> Notebook:
    try:
        document = raw.decode("utf-8")
        notebook = json.loads(document)
        cells = notebook["cells"]
        texts = [(i, _cell_text(cell)) for i, cell in enumerate(cells) if cell["cell_type"] == "code"]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"it is not a notebook of version 4: {type(error).__name__}: {error}") from None
    data, starts = b"", []
    for index, text in texts:
        starts.append((index, len(data)))
        data += text.encode("utf-8", "surrogatepass") + b"\n"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("a cell holds half a character (a lone surrogate)") from None
    return Notebook(path, data, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, document=document, cells=tuple(starts))


def _cell_text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    text = source if isinstance(source, str) else "".join(source)
    if not isinstance(text, str):
        raise TypeError("a cell's source is neither text nor lines")
    return text


def _hide_magics(cell: bytes) -> bytes:
    return _comment_out(cell) if _NOT_PYTHON.match(cell) else _MAGIC.sub(_hide, cell)


def _comment_out(cell: bytes) -> bytes:
    """The cell as comments of the same length."""
    return _LINE.sub(lambda match: b"#" * len(match[0]), cell)


def _hide(match: re.Match[bytes]) -> bytes:
    """Replaces a magic by the number 0 and a comment, so that a block of only magics still parses."""
    whole, start = match[0], match.start(1) - match.start()
    magic = match[1]
    hidden = b"0#" + magic[2:] if len(magic) > 1 else b"0"
    return whole[:start] + hidden + whole[start + len(magic) :]


def _style_of(document: str, notebook: Any) -> dict[str, Any] | None:
    body = document.rstrip()
    return next((style for style in _STYLES if json.dumps(notebook, **style) == body), None)  # type: ignore[arg-type]
