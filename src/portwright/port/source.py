"""Reads a file's text, and writes it back with only the edited bytes changed."""

from __future__ import annotations

import ast
import bisect
import codecs
import io
import re
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from portwright.port.finding import Edit

MAX_BYTES = 4 * 1024 * 1024  # larger files are data, and their syntax trees take gigabytes

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_IGNORE = re.compile(r"#\s*portwright:\s*ignore(?!-)(?:\[([^\]]*)\])?")


class UnreadableError(Exception):
    """The reason why a file cannot be checked."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Source:
    """Python text as UTF-8 bytes, with the offsets of the syntax tree and the encoding of the file."""

    path: Path
    data: bytes
    encoding: str = "utf-8"
    has_bom: bool = False
    flags: int = field(default=0, compare=False)

    @cached_property
    def text(self) -> str:
        return self.data.decode("utf-8")

    @cached_property
    def code(self) -> bytes:
        """The bytes to parse: the text, with anything that is not Python hidden without changing offsets."""
        return self.data

    @cached_property
    def problems(self) -> list[UnreadableError]:
        """Parts that cannot be parsed, in a file whose rest can."""
        return []

    @cached_property
    def line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _NEWLINE.finditer(self.data))]

    @cached_property
    def newline(self) -> str:
        match = _NEWLINE.search(self.data)
        return match.group().decode() if match else "\n"

    def parse(self) -> ast.Module:
        """The syntax tree; raises UnreadableError with the place of a syntax error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no warnings about backslashes in the user's strings
                tree: ast.Module = compile(
                    self.code, str(self.path), "exec", ast.PyCF_ONLY_AST | self.flags, dont_inherit=True
                )
                return tree
        except SyntaxError as error:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise UnreadableError(
                f"Python {version} cannot parse it: {error.msg}", error.lineno or 1, max(error.offset or 1, 1)
            ) from None
        except ValueError as error:
            raise UnreadableError(f"it cannot be parsed: {error}") from None
        except (RecursionError, MemoryError):
            raise UnreadableError("its expressions are nested too deeply to be parsed") from None

    def offset(self, line: int, column: int) -> int:
        """The offset of a line (from 1) and a column in bytes (from 0), as in syntax trees."""
        return self.line_starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The offsets of a node's first byte and of the byte after its last."""
        lines = self.line_starts
        return (
            lines[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            lines[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def segment(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode("utf-8")

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, the column in characters."""
        line = bisect.bisect_right(self.line_starts, offset)
        start = self.line_starts[line - 1]
        return line, len(self.data[start:offset].decode("utf-8", "replace")) + 1

    def place(self, line: int, column: int) -> tuple[int, int, str]:
        """A position as shown to users: line, column, and a prefix for the message."""
        return line, column, ""

    def line_span(self, line: int, last: int | None = None) -> tuple[int, int]:
        """The offsets of whole lines, with the last newline."""
        last = line if last is None else last
        end = self.line_starts[last] if last < len(self.line_starts) else len(self.data)
        return self.line_starts[line - 1], end

    def with_edits(self, edits: Iterable[Edit]) -> Source:
        return replace(self, data=apply_edits(self.data, edits))

    def to_bytes(self) -> bytes:
        """The file's content, in its own encoding."""
        return (codecs.BOM_UTF8 if self.has_bom else b"") + self.data.decode("utf-8").encode(self.encoding)

    @cached_property
    def ignored(self) -> dict[int, frozenset[str] | None]:
        """Lines with `# portwright: ignore[...]`: their codes, or None for all."""
        found: dict[int, frozenset[str] | None] = {}
        if b"portwright:" not in self.data:
            return found
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.code.decode("utf-8")).readline):
                match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
                if match:
                    codes = match[1]
                    found[token.start[0]] = (
                        None if codes is None else frozenset(c.strip().upper() for c in codes.split(","))
                    )
        except (tokenize.TokenError, SyntaxError):  # the parser accepts the file, only tokenize does not
            pass
        return found


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """Applies edits, which must not overlap."""
    pieces, position = [], 0
    for edit in sorted(edits):
        pieces += [data[position : edit.start], edit.text.encode("utf-8")]
        position = edit.end
    return b"".join([*pieces, data[position:]])


def read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableError("it is a folder that cannot be listed")
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("it is not a regular file")  # reading a pipe would wait for ever
        size = status.st_size
        if size > MAX_BYTES:
            raise UnreadableError(f"it has {size:,} bytes, more than the {MAX_BYTES:,} that are read")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from None


def decode(path: Path, raw: bytes) -> Source:
    """Reads Python text in the encoding that it declares."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        has_bom = encoding == "utf-8-sig"
        body = raw[len(codecs.BOM_UTF8) :] if has_bom else raw
        encoding = "utf-8" if has_bom else encoding
        text = body.decode(encoding)
    except (SyntaxError, LookupError) as error:
        raise UnreadableError(f"its encoding cannot be told: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UnreadableError(
            f"it is not {error.encoding} text: byte {error.start} is no character", line
        ) from None
    if encoding == "utf-8":
        return Source(path, body, has_bom=has_bom)
    if text.encode(encoding) != body:
        raise UnreadableError(f"its {encoding} text cannot be written back unchanged")
    # The tree counts columns in UTF-8; Recoded hides the declared encoding from the parser.
    return Recoded(path, text.encode("utf-8"), encoding)


class Recoded(Source):
    """The text of a file that is not UTF-8; its encoding declaration is hidden from the parser."""

    @cached_property
    def code(self) -> bytes:
        _, end = self.line_span(min(2, len(self.line_starts)))
        return re.sub(rb"coding([:=])", rb"c0ding\1", self.data[:end]) + self.data[end:]
