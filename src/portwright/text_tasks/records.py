"""Records of labelled text from CSV, TSV, JSONL and Parquet files, each with the place it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.data.tables import TABLES, find_files, read_rows
from portwright.errors import UserError, suggest


@dataclass(frozen=True)
class Record:
    """One sample as a file has it; `place` is its file and line."""

    place: str
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value of a key; without one the error lists the keys that exist."""
        found = self.values.get(key)
        if found is None:
            raise UserError(f"{self.place} has no '{key}'.", suggest(key, map(str, self.values)))
        return found

    def text(self, key: str) -> str:
        found = self.get(key)
        if not isinstance(found, str):
            raise self._wrong(key, found, "Give text.")
        return found

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The value as an object with keys; a table's cell has it as JSON."""
        found = self.get(key)
        if isinstance(found, str):
            found = self._parse(found)
        if not isinstance(found, Mapping):
            raise self._wrong(key, found, "Give an object with keys.")
        return found

    def items(self, key: str) -> list[Any]:
        """The value as a list; a table's cell has it as JSON or separated by blanks."""
        found = self.get(key)
        if isinstance(found, str):
            stripped = found.strip()
            found = self._parse(stripped) if stripped.startswith("[") else stripped.split()
        if not isinstance(found, Sequence):
            raise self._wrong(key, found, "Give a list.")
        return list(found)

    def _wrong(self, key: str, found: Any, cure: str) -> UserError:
        return UserError(f"{self.place}: '{key}' is {type(found).__name__}.", cure)

    def _parse(self, text: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{self.place} is not JSON: {error.msg} at column {error.colno}.",
                "The file may be cut off; write it anew.",
            ) from error


def read_records(
    data_dir: Any,
    section: str,
    what: str = "record",
    readers: Mapping[str, Callable[[Path], Iterator[Record]]] | None = None,
) -> list[Record]:
    """All records of the tables in data_dir, and of files with an ending that `readers` has a function for.

    Files come in the order of their names; data_dir may also name files. `what` they hold is for the error where they do not.
    """
    readers = {**dict.fromkeys(TABLES, read_table), **(readers or {})}
    files = find_files(data_dir, list(readers), f"{section}.data_dir: ")
    records = [record for file in files for record in readers[file.suffix.lower()](file)]
    if not records:
        raise UserError(f"{section}.data_dir: {files[0]} and all others hold no {what}.", "Give data.")
    return records


def read_table(file: Path) -> Iterator[Record]:
    # In GLUE's TSV files a quotation mark is an ordinary character.
    for row in read_rows(file, quoted=file.suffix.lower() != ".tsv", lenient=True):
        yield Record(f"{file}, {row.place}", row.values)
