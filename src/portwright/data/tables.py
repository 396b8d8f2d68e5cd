"""Reads CSV, TSV, JSONL, Parquet and Arrow row by row; each row knows its place in its file."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from portwright.errors import UserError, suggest
from portwright.extras import missing

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
BOM = b"\xef\xbb\xbf"
_ARROW = (".parquet", ".arrow", ".feather")
_ROWS_A_BATCH = 4096  # rows of Parquet in memory at once
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of bytes that are not UTF-8
_LONGEST_CELL = 1 << 30
_lock = threading.Lock()
_num_readers = _usual_cell = 0


class Row(NamedTuple):
    """One record's values by column or key; `place` says where in the file it is."""

    place: str
    values: dict[str, Any]


@dataclass(frozen=True)
class BadRecord:
    """A part of a file that cannot be read as a record."""

    path: Path
    place: str
    reason: str
    cure: str

    def as_error(self, more_cure: str = "") -> UserError:
        return UserError(f"'{self.path}', {self.place}: {self.reason}.", self.cure + more_cure)


def find_files(places: Any, endings: Sequence[str], prefix: str = "") -> list[Path]:
    """The named files, and the files of the named folders sorted by name; `prefix` begins each error."""
    files: list[Path] = []
    formats = f"Formats: {', '.join(endings)}."
    for each in [places] if isinstance(places, str | Path) else places:
        place = Path(each).expanduser()
        if place.is_dir():
            everything = sorted(place.iterdir())
            found = [path for path in everything if path.suffix.lower() in endings and path.is_file()]
            if not found:
                shown = ", ".join(path.name for path in everything[:5]) or "nothing"
                raise UserError(
                    f"{prefix}'{place}' holds no file of a format that is read here (it has {shown}).",
                    formats,
                )
            files += found
        elif not place.exists():
            raise UserError(f"{prefix}'{place}' does not exist.", "Correct the path.")
        elif place.suffix.lower() not in endings:
            raise UserError(
                f"{prefix}'{place}' is of no format known here.",
                f"{suggest(place.suffix, endings)} {formats}",
            )
        else:
            files.append(place)
    if not files:
        raise UserError(f"{prefix}no file is named.", formats)
    return files


def read_rows(
    path: Path,
    *,
    quoted: bool = True,
    lenient: bool = False,
    on_heading: Callable[[Sequence[str]], None] | None = None,
) -> Iterator[Row]:
    """Yields a file's rows; raises at the first that cannot be read. The options are those of `csv_rows`."""
    suffix = path.suffix.lower()
    if suffix in _ARROW:
        yield from arrow_rows(path)
        return
    rows: Iterator[Row | BadRecord]
    try:
        with path.open("rb") as file:
            if suffix == ".jsonl":
                rows = jsonl_rows(path, file)
            else:
                text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
                delimiter = "\t" if suffix == ".tsv" else ","
                rows = csv_rows(path, text, delimiter, quoted=quoted, lenient=lenient, on_heading=on_heading)
            for row in rows:
                if isinstance(row, BadRecord):
                    raise row.as_error()
                yield row
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.", "Check the file.") from error


def jsonl_rows(
    path: Path, lines: Iterable[bytes], first_line: int = 1, first_byte: int = 0
) -> Iterator[Row | BadRecord]:
    """Yields the objects of JSON lines; other lines become bad records."""
    end = first_byte
    for number, line in enumerate(lines, first_line):
        start, end = end, end + len(line)
        place, cure = f"line {number}", "Mend the line; the file may be cut off."
        try:
            text = (line if start else line.removeprefix(BOM)).decode().removesuffix("\n")
            if not text or text.isspace():
                continue
            values = json.loads(text)
        except UnicodeDecodeError as error:
            bad = f"0x{error.object[error.start]:02x} is not UTF-8"
            yield BadRecord(path, f"{place}, byte {start + error.start}", bad, "Save it as UTF-8.")
        except json.JSONDecodeError as error:
            yield BadRecord(path, place, f"not JSON ({error.msg} at column {error.colno})", cure)
        except (RecursionError, ValueError) as error:  # nested too deeply, or numbers of thousands of digits
            yield BadRecord(path, place, f"not JSON that can be read ({error})", cure)
        else:
            if isinstance(values, dict):
                yield Row(place, values)
            else:
                yield BadRecord(path, place, f"{shorten(values)} is no JSON object", "A line is one object.")


def csv_rows(
    path: Path,
    lines: Iterable[str],
    delimiter: str,
    *,
    quoted: bool = True,
    lenient: bool = False,
    shift: int = 0,
    on_heading: Callable[[Sequence[str]], None] | None = None,
) -> Iterator[Row | BadRecord]:
    """Yields the records below a heading, which `on_heading` may refuse; `shift` is added to line numbers.

    Without `quoted`, a quotation mark is an ordinary character. `lenient` allows quotation marks inside of cells, NULs,
    and blanks around a column's name. Bytes that are not UTF-8 must have been decoded with "surrogateescape".
    """
    if lenient:
        lines = (line.replace("\x00", "") for line in lines)
    rows = csv.reader(
        lines,
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=not lenient,
    )
    heading: list[str] | None = None
    with _long_cells():
        try:
            for row in rows:
                if not row:
                    continue
                bad: str | None = None
                if (found := _NOT_UTF8.search("".join(row))) is not None:
                    bad, cure = f"0x{ord(found[0]) - 0xDC00:02x} is not UTF-8", "Save it as UTF-8."
                elif heading is not None and len(row) != len(heading):
                    bad = f"{len(row)} columns where the heading has {len(heading)}"
                    cure = "Put texts with a delimiter in quotes; the file may be cut off."
                place = f"record that ends on line {rows.line_num + shift}"
                if bad is not None and heading is not None:
                    yield BadRecord(path, place, bad, cure)
                elif bad is not None:
                    raise BadRecord(path, "the heading", bad, cure).as_error()
                elif heading is not None:
                    yield Row(place, dict(zip(heading, row, strict=True)))
                else:
                    heading = [name.strip() for name in row] if lenient else row
                    if on_heading is not None:
                        on_heading(heading)
        except csv.Error as error:
            where = f"'{path}', near line {rows.line_num + shift}"
            raise UserError(f"{where}: not a table ({error}).", "Close every quote.") from error


@contextmanager
def _long_cells() -> Iterator[None]:
    """Lifts csv's limit of 128 kB a cell, which is one setting for the whole process.

    Several readers may be open at once: the first one lifts the limit, the last one restores it.
    """
    global _num_readers, _usual_cell
    with _lock:
        if not _num_readers:
            _usual_cell = csv.field_size_limit(_LONGEST_CELL)
        _num_readers += 1
    try:
        yield
    finally:
        with _lock:
            _num_readers -= 1
            if not _num_readers:
                csv.field_size_limit(_usual_cell)


class ArrowTable:
    """An open Parquet or Arrow file, as groups of rows."""

    def __init__(self, pyarrow: Any, reader: Any) -> None:
        self._pyarrow, self._reader = pyarrow, reader
        self._is_parquet = hasattr(reader, "num_row_groups")
        self.schema = reader.schema_arrow if self._is_parquet else reader.schema

    def group_sizes(self) -> Iterator[tuple[int, int]]:
        """Yields rows and bytes of each group: a row group of Parquet, a record batch of Arrow."""
        if self._is_parquet:
            groups = map(self._reader.metadata.row_group, range(self._reader.num_row_groups))
            return ((group.num_rows, group.total_byte_size) for group in groups)
        return ((batch.num_rows, batch.nbytes) for batch in self.batches())

    def batches(
        self, columns: Sequence[str] | None = None, first: int = 0, last: int | None = None
    ) -> Iterator[Any]:
        """Yields record batches of these columns, of the groups first to last - 1."""
        reader = self._reader
        if self._is_parquet:
            groups = list(range(reader.num_row_groups)[first:last])
            yield from reader.iter_batches(_ROWS_A_BATCH, groups, columns)
            return
        found: Iterable[Any]
        if hasattr(reader, "get_batch"):
            found = map(reader.get_batch, range(reader.num_record_batches)[first:last])
        else:
            found = islice(reader, first, last)
        for batch in found:
            yield batch if columns is None else batch.select(columns)

    def columns(self, names: Sequence[str]) -> dict[str, Any]:
        """Whole columns, each as one pyarrow array."""
        parts = list(self.batches(names))
        if not parts:
            return {name: self._pyarrow.array([], self.schema.field(name).type) for name in names}
        return {name: self._pyarrow.concat_arrays([part.column(name) for part in parts]) for name in names}


@contextmanager
def open_arrow(path: Path) -> Iterator[ArrowTable]:
    """Opens a Parquet file, an Arrow file, or an Arrow stream as HuggingFace's datasets write it."""
    pyarrow = import_pyarrow(path)
    try:
        if path.suffix.lower() == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                yield ArrowTable(pyarrow, file)
        else:
            with pyarrow.memory_map(str(path)) as source:
                try:
                    reader = pyarrow.ipc.open_file(source)
                except pyarrow.ArrowInvalid:
                    source.seek(0)
                    reader = pyarrow.ipc.open_stream(source)
                yield ArrowTable(pyarrow, reader)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(
            f"'{path}' cannot be read: {reason}.", "It may be cut off or of another format; write it anew."
        ) from error


def arrow_rows(
    path: Path,
    columns: Sequence[str] | None = None,
    first: int = 0,
    last: int | None = None,
    first_row: int = 0,
) -> Iterator[Row]:
    """Yields the rows of the groups first to last - 1, which `first_row` rows precede; places count from 1."""
    number = first_row
    with open_arrow(path) as table:
        for name in columns or ():
            check_column(path, name, table.schema.names)
        for batch in table.batches(columns, first, last):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"record {number}", values)


def import_pyarrow(path: Path) -> Any:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise missing("pyarrow", f"'{path}'") from error
    return pyarrow


def check_column(
    path: Path,
    name: str,
    names: Sequence[str],
    cure: str = "Name the one with the text (--text-key, text_key).",
) -> None:
    if name not in names:
        raise UserError(f"'{path}' has no column '{name}'.", f"{cure} {suggest(name, names)}")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8: byte {error.start}.", "Save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.", "Check the file.") from error


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
