"""Reads documents, and records that cannot be read, from parts of files; each knows its file and place."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from portwright.data.tables import (
    BOM,
    BadRecord,
    Row,
    arrow_rows,
    check_column,
    csv_rows,
    jsonl_rows,
    shorten,
)
from portwright.errors import suggest
from portwright.text.feed import Part, Split, TablePart, TextPart
from portwright.text.objectives import Document

SKIP_CURE = " Or leave such records out: portwright data prepare --skip-bad."
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


def read_documents(parts: Sequence[Part], split: Split, text_key: str) -> Iterator[Document | BadRecord]:
    """Yields all records of some parts of files, in order."""
    for part in parts:
        if isinstance(part, TablePart):
            rows: Iterator[Row | BadRecord] = arrow_rows(
                part.path, [text_key], part.first, part.last, part.first_row
            )
        elif not part.first_byte and part.is_last and not part.data.strip() and not part.damage:
            yield _empty(part.path, "the file")
            continue
        elif part.format == "text":
            yield from _read_text(part, split)
            rows = iter(())
        else:
            rows = _read_rows(part, text_key)
        for row in rows:
            yield row if isinstance(row, BadRecord) else _document(row, text_key, part.path)
        if isinstance(part, TextPart) and part.damage:
            place = f"byte {part.first_byte + len(part.data)} of the text"
            yield BadRecord(part.path, place, part.damage, "Fetch the file anew.")


def _read_rows(part: TextPart, text_key: str) -> Iterator[Row | BadRecord]:
    path = part.path
    if part.format == "jsonl":
        return jsonl_rows(path, io.BytesIO(part.data), part.first_line, part.first_byte)
    text = (part.heading + part.data).removeprefix(BOM).decode("utf-8", "surrogateescape")
    return csv_rows(
        path,
        io.StringIO(text, newline=""),
        "\t" if part.format == "tsv" else ",",
        shift=part.first_line - 1 - part.heading.count(b"\n"),
        on_heading=lambda heading: check_column(path, text_key, heading),
    )


def _read_text(part: TextPart, split: Split) -> Iterator[Document | BadRecord]:
    data, offset = part.data, part.first_byte
    if offset == 0 and data.startswith(BOM):
        data, offset = data[len(BOM) :], len(BOM)
    if split == "line":
        for line in data.split(b"\n"):
            if line.strip():
                yield _decode(part.path, line.rstrip(b"\r"), offset)
            offset += len(line) + 1
        return
    decoded = _decode(part.path, data, offset, whole=part.is_last, begun=part.first_byte > 0)
    if isinstance(decoded, BadRecord) or split == "file":
        yield decoded
        return
    for text in _BLANK_LINES.split(decoded.text):
        if text.strip():
            yield Document(text.strip("\n"))


def _decode(
    path: Path, data: bytes, offset: int, *, whole: bool = True, begun: bool = False
) -> Document | BadRecord:
    try:
        return Document(data.decode("utf-8").replace("\r\n", "\n"), whole, begun)
    except UnicodeDecodeError as error:
        return BadRecord(
            path,
            f"byte {offset + error.start}",
            f"0x{data[error.start]:02x} is not UTF-8",
            "Save it as UTF-8 (iconv -f latin1 -t utf-8).",
        )


def _document(row: Row, key: str, path: Path) -> Document | BadRecord:
    if key not in row.values:
        cure = f"Name the key with the text (--text-key, text_key). {suggest(key, list(row.values))}"
        return BadRecord(path, row.place, f"no key '{key}'", cure)
    value = row.values[key]
    if not isinstance(value, str):
        return BadRecord(path, row.place, f"'{key}' is {shorten(value)}, not text", "Give a text.")
    if not value.strip():
        return _empty(path, row.place)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        half = f"'{key}' holds half of a surrogate pair"
        return BadRecord(path, row.place, half, "Mend the escapes of the record.")
    return Document(value)


def _empty(path: Path, place: str) -> BadRecord:
    return BadRecord(path, place, "the document is empty", "Take it out.")
