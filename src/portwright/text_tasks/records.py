"""Records of labelled text from CSV, TSV, JSONL and Parquet files, each with the place it came from."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.long_cells import begin_long_cells, end_long_cells

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")


@dataclass(frozen=True)
class Record:
    """What a file says of one sample; `place` is its file and line."""

    place: str
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value, which must be there; the error lists what is."""
        found = self.values.get(key)
        if found is None:
            raise UserError(f"{self.place} has no '{key}'.", suggest(key, map(str, self.values)))
        return found

    def text(self, key: str) -> str:
        found = self.get(key)
        if not isinstance(found, str):
            raise UserError(f"{self.place}: '{key}' is {type(found).__name__}.", "Give text.")
        return found

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object with keys; in a table's cell it is JSON."""
        found = self.get(key)
        if isinstance(found, str):
            found = _parse(found, self.place)
        if not isinstance(found, Mapping):
            raise UserError(f"{self.place}: '{key}' is {type(found).__name__}.", "Give an object with keys.")
        return found

    def items(self, key: str) -> list[Any]:
        """A list; in a table's cell it is JSON, or has blanks between its items."""
        found = self.get(key)
        if isinstance(found, str):
            stripped = found.strip()
            found = _parse(stripped, self.place) if stripped.startswith("[") else stripped.split()
        if not isinstance(found, Sequence):
            raise UserError(f"{self.place}: '{key}' is {type(found).__name__}.", "Give a list.")
        return list(found)


def find_files(data_dir: Any, section: str, suffixes: Sequence[str]) -> list[Path]:
    """Files of data_dir with one of these endings, in the order of their names; data_dir may also name files."""
    files: list[Path] = []
    for place in [
        Path(each).expanduser() for each in ([data_dir] if isinstance(data_dir, str | Path) else data_dir)
    ]:
        if place.is_dir():
            found = sorted(file for file in place.iterdir() if file.suffix in suffixes and file.is_file())
        else:
            found = [place] if place.is_file() else []
        if not place.exists():
            raise UserError(f"{section}.data_dir: '{place}' does not exist.", "Correct the path.")
        if not found or any(file.suffix not in suffixes for file in found):
            raise UserError(
                f"{section}.data_dir: '{place}' neither is nor holds a file {', '.join(suffixes)}.",
                "Give a file, or a folder of files, of one of these forms.",
            )
        files += found
    return files


def read_records(data_dir: Any, section: str) -> list[Record]:
    """All records of the tables in data_dir."""
    files = find_files(data_dir, section, TABLES)
    records = [record for file in files for record in read_file(file)]
    if not records:
        raise UserError(f"{section}.data_dir: {files[0]} and all others hold no record.", "Give data.")
    return records


def read_file(file: Path) -> Iterator[Record]:
    if file.suffix in (".parquet", ".arrow"):
        return _read_arrow(file)
    return _read_jsonl(file) if file.suffix == ".jsonl" else _read_table(file)


def read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8: byte {error.start}.", "Save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.", "Check the file.") from error


def _read_jsonl(file: Path) -> Iterator[Record]:
    # Not splitlines: U+2028 and its like may stand in a JSON text.
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            place = f"{file} line {number}"
            values = _parse(line, place)
            if not isinstance(values, dict):
                raise UserError(f"{place} is {type(values).__name__}.", "A line is one JSON object.")
            yield Record(place, values)


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{place} is no JSON: {error.msg} at column {error.colno}.",
            "The file may be cut off; write it anew.",
        ) from error


def _read_table(file: Path) -> Iterator[Record]:
    begin_long_cells()
    text = io.StringIO(read_text(file).replace("\x00", ""), newline="")
    # In TSV as GLUE has it, a quotation mark is a letter like any other.
    is_tabbed = file.suffix == ".tsv"
    rows = csv.reader(
        text, delimiter="\t" if is_tabbed else ",", quoting=csv.QUOTE_NONE if is_tabbed else csv.QUOTE_MINIMAL
    )
    header: list[str] | None = None
    try:
        for row in rows:
            if not row:
                continue
            if header is None:
                header = [name.strip() for name in row]
                continue
            place = f"{file} line {rows.line_num}"
            if len(row) != len(header):
                raise UserError(
                    f"{place} has {len(row)} cells, and the first line {len(header)}.",
                    "Quote cells that hold the separator.",
                )
            yield Record(place, dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise UserError(f"{file} line {rows.line_num} is no CSV: {error}.", "Write the file anew.") from error
    finally:
        end_long_cells()


def _read_arrow(file: Path) -> Iterator[Record]:
    try:
        pyarrow, ipc, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))
    except ImportError as error:
        raise UserError(
            f"{file} needs pyarrow, which is not installed.", "pip install 'portwright[arrow]'."
        ) from error
    try:
        if file.suffix == ".parquet":
            table = parquet.read_table(file)
        else:
            with pyarrow.memory_map(str(file)) as source:
                try:
                    table = ipc.open_file(source).read_all()
                except pyarrow.ArrowInvalid:  # HuggingFace's datasets write streams
                    source.seek(0)
                    table = ipc.open_stream(source).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{file} cannot be read: {str(error).splitlines()[0]}.", "It may be cut off."
        ) from error
    for number, values in enumerate(table.to_pylist()):
        yield Record(f"{file} row {number}", values)
