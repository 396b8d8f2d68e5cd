"""Cuts inputs of any size into units of work, one after another.

A unit becomes a shard. Its bounds depend only on the bytes of the inputs, so that any number of processes makes the
same shards.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from portwright.data.tables import import_pyarrow, open_arrow
from portwright.errors import UserError
from portwright.text.inputs import InputFile

Split = Literal["file", "paragraph", "line"]

LONGEST_RECORD = 256 << 20  # bytes of a line of JSON or CSV: it has to fit into memory several times


@dataclass(frozen=True)
class TextPart:
    """Some bytes of a text file that are whole records, or whole lines where the file is one document."""

    path: Path
    format: str
    data: bytes
    first_byte: int
    first_line: int  # from 1
    is_last: bool
    heading: bytes = b""  # of CSV, where the part is not the first
    damage: str = ""  # why the file cannot be read beyond this part


@dataclass(frozen=True)
class TablePart:
    """Row groups (Parquet) or record batches (Arrow) first to last - 1 of a file."""

    path: Path
    first: int
    last: int
    first_row: int
    num_bytes: int


Part = TextPart | TablePart


@dataclass
class Unit:
    """The input that one process makes into one shard."""

    number: int
    parts: list[Part] = field(default_factory=list)
    num_bytes: int = 0
    donors: list[Part] = field(default_factory=list)  # parts of another unit, for foreign text


def feed_units(files: Sequence[InputFile], unit_bytes: int, split: Split) -> Iterator[tuple[Unit, int]]:
    """Yields units of about `unit_bytes` of text, each with the bytes of input files read so far."""
    unit = Unit(0)
    used = 0
    for file in files:
        if file.is_table:
            for rows in _table_parts(file.path, unit_bytes):
                if unit.parts and unit.num_bytes + rows.num_bytes > unit_bytes:
                    yield unit, used
                    unit = Unit(unit.number + 1)
                unit.parts.append(rows)
                unit.num_bytes += rows.num_bytes
        else:
            for part, consumed in _TextFile(file, split).parts(unit, unit_bytes):
                if part is None:
                    yield unit, used + consumed
                    unit = Unit(unit.number + 1)
                else:
                    unit.parts.append(part)
                    unit.num_bytes += len(part.data)
        used += file.num_bytes
    if unit.parts:
        yield unit, used


def _table_parts(path: Path, unit_bytes: int) -> Iterator[TablePart]:
    """Yields runs of a file's row groups of up to `unit_bytes`; a group is never cut."""
    first = first_row = num_rows = num_bytes = 0
    number = -1
    with open_arrow(path) as table:
        for number, (more_rows, more_bytes) in enumerate(table.group_sizes()):
            if num_bytes and num_bytes + more_bytes > unit_bytes:
                yield TablePart(path, first, number, first_row, num_bytes)
                first, first_row, num_rows, num_bytes = number, first_row + num_rows, 0, 0
            num_rows += more_rows
            num_bytes += more_bytes
    yield TablePart(path, first, number + 1, first_row, num_bytes)


def lend_donors(units: Iterable[tuple[Unit, int]]) -> Iterator[tuple[Unit, int]]:
    """Gives each unit a part of the previous one as a donor; the first unit gets one of the second."""
    held: tuple[Unit, int] | None = None
    before: list[Part] = []
    for unit, used in units:
        if held is not None:
            held[0].donors = before or unit.parts[:1]
            before = held[0].parts[-1:]
            yield held
        held = unit, used
    if held is not None:
        held[0].donors = before
        yield held


class _TextFile:
    """One file of text, read once from its beginning to its end."""

    def __init__(self, file: InputFile, split: Split) -> None:
        self.file, self.split = file, split
        self.damage = ""
        self.ended = False

    def parts(self, unit: Unit, unit_bytes: int) -> Iterator[tuple[TextPart | None, int]]:
        """Yields parts for the current unit, each with the bytes of the file read so far; None asks for the next unit."""
        room = unit_bytes - unit.num_bytes
        buffer, first_byte, first_line = b"", 0, 1
        heading = b""
        with _open_raw(self.file) as raw:
            stream = _decompressed(self.file, raw)
            while True:
                if room <= 0:
                    yield None, raw.tell()
                    room = unit_bytes
                buffer += self._read(stream, max(room + 1 - len(buffer), 0))
                if self.ended and len(buffer) <= room:
                    if buffer or not first_byte or self.damage:
                        yield self._part(buffer, first_byte, first_line, heading, is_last=True), raw.tell()
                    return
                cut = _last_cut(buffer, room, self.file.format, self.split)
                if cut == 0:
                    if room < unit_bytes:  # a record that does not fit here may fit into the next unit
                        room = 0
                        continue
                    buffer, cut = self._grow(stream, buffer, room)
                if cut == len(buffer):
                    buffer += self._read(stream, 1)  # so that the last part of the file is known as such
                data, buffer = buffer[:cut], buffer[cut:]
                is_last = self.ended and not buffer
                yield self._part(data, first_byte, first_line, heading, is_last=is_last), raw.tell()
                if is_last:
                    return
                if self.file.format in ("csv", "tsv") and not first_byte:
                    heading = data[: _first_cut(data, self.file.format, self.split) or len(data)]
                first_byte += len(data)
                first_line += data.count(b"\n")
                room -= len(data)

    def _grow(self, stream: IO[bytes], buffer: bytes, step: int) -> tuple[bytes, int]:
        """Reads on until a record longer than a unit is complete; running text is cut at a blank instead."""
        while not (cut := _first_cut(buffer, self.file.format, self.split)):
            if self.ended:
                return buffer, len(buffer)
            if self.file.format == "text" and self.split != "line":
                return buffer, _blank_cut(buffer)
            if len(buffer) > LONGEST_RECORD:
                raise UserError(
                    f"'{self.file.path}': a record of more than {LONGEST_RECORD >> 20} MiB.",
                    "A record is a line; is this the format that the file's ending says?",
                )
            buffer += self._read(stream, max(step, len(buffer)))
        return buffer, cut

    def _read(self, stream: IO[bytes], size: int) -> bytes:
        """Exactly `size` bytes, unless the file ends before."""
        pieces, missing = [], size
        # read1 gives what was unpacked before the damage; read would lose it, and the place of the damage.
        read = stream.read if self.file.compression is None else stream.read1  # type: ignore[attr-defined]
        while missing > 0 and not self.ended:
            try:
                piece = read(min(missing, 1 << 22))
            except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
                self.damage, piece = _explain_damage(self.file, error), b""
            if not piece:
                self.ended = True
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _part(
        self, data: bytes, first_byte: int, first_line: int, heading: bytes, *, is_last: bool
    ) -> TextPart:
        return TextPart(
            self.file.path,
            self.file.format,
            data,
            first_byte,
            first_line,
            is_last,
            heading,
            self.damage if is_last else "",
        )


def _open_raw(file: InputFile) -> IO[bytes]:
    try:
        return file.path.open("rb")
    except OSError as error:
        raise UserError(f"'{file.path}' cannot be read: {error.strerror}.", "Check the file.") from error


def _decompressed(file: InputFile, raw: IO[bytes]) -> Any:
    if file.compression == "zst":
        pyarrow = import_pyarrow(file.path)
        return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")
    openers: dict[str, Any] = {
        "gz": lambda raw: gzip.GzipFile(fileobj=raw),
        "bz2": bz2.BZ2File,
        "xz": lzma.LZMAFile,
    }
    return raw if file.compression is None else openers[file.compression](raw)


def _explain_damage(file: InputFile, error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the compressed file is truncated"
    if file.compression is None and isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or error})"
    return f"the compressed file is damaged ({error})"


def _last_cut(data: bytes, limit: int, format: str, split: Split) -> int:
    """The end of the last whole record within `limit` bytes; 0: there is none."""
    if format in ("csv", "tsv"):
        ends = _csv_ends(data[:limit])
        return int(ends[-1]) + 1 if len(ends) else 0
    if format == "text" and split == "paragraph":
        return max(_after(data.rfind(mark, 0, limit), mark) for mark in (b"\n\n", b"\n\r\n"))
    return data.rfind(b"\n", 0, limit) + 1


def _first_cut(data: bytes, format: str, split: Split) -> int:
    """The end of the first whole record; 0: there is none."""
    if format in ("csv", "tsv"):
        ends = _csv_ends(data)
        return int(ends[0]) + 1 if len(ends) else 0
    if format == "text" and split == "paragraph":
        found = [_after(data.find(mark), mark) for mark in (b"\n\n", b"\n\r\n")]
        return min((end for end in found if end), default=0)
    return data.find(b"\n") + 1


def _after(place: int, mark: bytes) -> int:
    return place + len(mark) if place >= 0 else 0


def _csv_ends(data: bytes) -> Any:
    """Line feeds that end a record: those outside of quotes."""
    letters = np.frombuffer(data, np.uint8)
    outside = np.cumsum(letters == ord('"')) % 2 == 0
    return np.flatnonzero((letters == ord("\n")) & outside)


def _blank_cut(data: bytes) -> int:
    """The end of the last blank, or without blanks a place between two characters: text without lines must be cut."""
    blank = max(data.rfind(b" "), data.rfind(b"\n"))
    if blank >= 0:
        return blank + 1
    cut = len(data)
    while cut > 1 and len(data) - cut < 3 and data[cut - 1] & 0xC0 == 0x80:
        cut -= 1
    return cut - 1 if cut > 1 and data[cut - 1] >= 0xC0 else len(data)
