"""Documents out of parts of files, and the records that are none, each named by its file and place."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.long_cells import begin_long_cells, end_long_cells
from portwright.text.feed import Part, Split, TextPart, Unit
from portwright.text.objectives import Document
from portwright.text.tables import TablePart, texts_of

_BOM = b"\xef\xbb\xbf"
_ESCAPED = re.compile("[\udc80-\udcff]")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True)
class BadRecord:
    """A record that is no document."""

    path: Path
    place: str
    reason: str
    cure: str

    def as_error(self) -> UserError:
        return UserError(
            f"'{self.path}', {self.place}: {self.reason}.",
            f"{self.cure} Or leave such records out: portwright data prepare --skip-bad.",
        )

    def as_dict(self) -> dict[str, str]:
        return {"file": self.path.name, "place": self.place, "reason": self.reason}


def read_documents(unit: Unit, split: Split, text_key: str) -> Iterator[Document | BadRecord]:
    """All records of a unit, in order."""
    yield from read_parts(unit.parts, split, text_key)


def read_parts(parts: Sequence[Part], split: Split, text_key: str) -> Iterator[Document | BadRecord]:
    for part in parts:
        yield from _read_part(part, split, text_key)


def _read_part(part: Part, split: Split, text_key: str) -> Iterator[Document | BadRecord]:
    if isinstance(part, TablePart):
        for number, value in texts_of(part, text_key):
            yield _document(value, text_key, part.path, f"record {number}")
    elif part.format == "jsonl":
        yield from _read_jsonl(part, text_key)
    elif part.format in ("csv", "tsv"):
        yield from _read_csv(part, text_key)
    else:
        yield from _read_text(part, split)
    if isinstance(part, TextPart) and part.damage:
        yield BadRecord(
            part.path,
            f"byte {part.first_byte + len(part.data)} of the text",
            part.damage,
            "Fetch the file anew.",
        )


def _read_text(part: TextPart, split: Split) -> Iterator[Document | BadRecord]:
    data, offset = part.data, part.first_byte
    if offset == 0 and data.startswith(_BOM):
        data, offset = data[len(_BOM) :], len(_BOM)
    if not part.first_byte and part.is_last and not data.strip() and not part.damage:
        yield _empty(part.path, "the file")
        return
    if split == "line":
        number = part.first_line
        for line in data.split(b"\n"):
            if line.strip():
                yield _decode(part.path, line.rstrip(b"\r"), offset)
            offset += len(line) + 1
            number += 1
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


def _read_jsonl(part: TextPart, text_key: str) -> Iterator[Document | BadRecord]:
    offset = part.first_byte
    if not offset and part.is_last and not part.data.strip() and not part.damage:
        yield _empty(part.path, "the file")
    for number, line in enumerate(part.data.split(b"\n"), start=part.first_line):
        start, offset = offset, offset + len(line) + 1
        if start == 0:
            line = line.removeprefix(_BOM)
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            yield BadRecord(
                part.path,
                f"{place}, byte {start + error.start}",
                f"0x{line[error.start]:02x} is not UTF-8",
                "Save it as UTF-8.",
            )
            continue
        except json.JSONDecodeError as error:
            yield BadRecord(
                part.path, place, f"no JSON ({error.msg} at column {error.colno})", "Mend the line."
            )
            continue
        except (RecursionError, ValueError) as error:
            yield BadRecord(part.path, place, f"no JSON that can be read ({error})", "Mend the line.")
            continue
        if not isinstance(record, Mapping) or text_key not in record:
            names = list(map(str, record)) if isinstance(record, Mapping) else []
            what = (
                f"no key '{text_key}'"
                if isinstance(record, Mapping)
                else f"{_shown(record)} is no JSON object"
            )
            yield BadRecord(
                part.path,
                place,
                what,
                f"Name the key with the text (--text-key, text_key). {suggest(text_key, names)}",
            )
            continue
        yield _document(record[text_key], text_key, part.path, place)


def _read_csv(part: TextPart, text_key: str) -> Iterator[Document | BadRecord]:
    # Bytes that are not UTF-8 become lone surrogates, by which the records that hold them are known.
    text = (part.heading + part.data).removeprefix(_BOM).decode("utf-8", "surrogateescape")
    begin_long_cells()
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if part.format == "tsv" else ",", strict=True
    )
    try:
        heading = next(rows, None)
        if heading is None:
            yield _empty(part.path, "the file")
            return
        if text_key not in heading:
            raise UserError(
                f"'{part.path}' has no column '{text_key}'.",
                f"Name the one with the text (--text-key, text_key). {suggest(text_key, heading)}",
            )
        column = heading.index(text_key)
        shift = part.first_line - 1 - part.heading.count(b"\n")
        for row in rows:
            place = f"record that ends on line {rows.line_num + shift}"
            if not row:
                continue
            if (bad := _ESCAPED.search("".join(row))) is not None:
                what = f"0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8"
                yield BadRecord(part.path, place, what, "Save it as UTF-8.")
                continue
            if len(row) != len(heading):
                yield BadRecord(
                    part.path,
                    place,
                    f"{len(row)} columns where the heading has {len(heading)}",
                    "Put texts with a delimiter in quotes.",
                )
                continue
            yield _document(row[column], text_key, part.path, place)
    except csv.Error as error:
        raise UserError(
            f"'{part.path}', near line {rows.line_num + part.first_line - 1}: no table ({error}).",
            "Close every quote.",
        ) from error
    finally:
        end_long_cells()


def _document(value: Any, key: str, path: Path, place: str) -> Document | BadRecord:
    if not isinstance(value, str):
        return BadRecord(path, place, f"'{key}' is {_shown(value)}, not text", "Give a text.")
    if not value.strip():
        return _empty(path, place)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return BadRecord(
            path, place, f"'{key}' holds half of a surrogate pair", "Mend the escapes of the record."
        )
    return Document(value)


def _empty(path: Path, place: str) -> BadRecord:
    return BadRecord(path, place, "the document is empty", "Take it out.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
