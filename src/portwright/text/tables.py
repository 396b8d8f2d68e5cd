"""Parquet and Arrow files: which rows a unit of work takes, and their texts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.text.inputs import InputFile


@dataclass(frozen=True)
class TablePart:
    """Row groups (Parquet) or record batches (Arrow) first to last - 1 of a file."""

    path: Path
    format: str
    first: int
    last: int
    first_row: int
    num_bytes: int


def table_parts(file: InputFile, unit_bytes: int) -> Iterator[TablePart]:
    """A file's groups of rows, together up to `unit_bytes`; a group is never cut."""
    first, first_row, rows, size = 0, 0, 0, 0
    number = -1
    for number, (num_rows, num_bytes) in enumerate(_group_sizes(file.path, file.format)):
        if size and size + num_bytes > unit_bytes:
            yield TablePart(file.path, file.format, first, number, first_row, size)
            first, first_row, rows, size = number, first_row + rows, 0, 0
        rows += num_rows
        size += num_bytes
    yield TablePart(file.path, file.format, first, number + 1, first_row, size)


def texts_of(part: TablePart, column: str) -> Iterator[tuple[int, Any]]:
    """The number of each row, from 1, and what stands in the column there."""
    number = part.first_row
    for values in _column_values(part, column):
        for value in values:
            number += 1
            yield number, value


def _group_sizes(path: Path, format: str) -> Iterator[tuple[int, int]]:
    pyarrow = import_pyarrow(path)
    try:
        if format == "parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                metadata = file.metadata
                for group in range(metadata.num_row_groups):
                    yield metadata.row_group(group).num_rows, metadata.row_group(group).total_byte_size
            return
        with pyarrow.memory_map(str(path)) as source:
            for batch in _arrow_batches(pyarrow, source, 0, None):
                yield batch.num_rows, batch.nbytes
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _column_values(part: TablePart, column: str) -> Iterator[list[Any]]:
    pyarrow = import_pyarrow(part.path)
    try:
        if part.format == "parquet":
            with pyarrow.parquet.ParquetFile(part.path) as file:
                _check_column(part.path, column, file.schema_arrow.names)
                groups = list(range(part.first, part.last))
                for batch in file.iter_batches(batch_size=1024, row_groups=groups, columns=[column]):
                    yield batch.column(0).to_pylist()
            return
        with pyarrow.memory_map(str(part.path)) as source:
            for batch in _arrow_batches(pyarrow, source, part.first, part.last):
                _check_column(part.path, column, batch.schema.names)
                yield batch.column(batch.schema.names.index(column)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(part.path, error) from error


def _arrow_batches(pyarrow: Any, source: Any, first: int, last: int | None) -> Iterator[Any]:
    """Record batches of either layout of Arrow: files, and the streams that HuggingFace's datasets write."""
    try:
        reader = pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        stream = pyarrow.ipc.open_stream(source)
        for number, batch in enumerate(stream):
            if last is not None and number >= last:
                return
            if number >= first:
                yield batch
        return
    for number in range(first, reader.num_record_batches if last is None else last):
        yield reader.get_batch(number)


def _check_column(path: Path, column: str, names: list[str]) -> None:
    if column not in names:
        raise UserError(
            f"'{path}' has no column '{column}'.", f"Name the one with the text. {suggest(column, names)}"
        )


def import_pyarrow(path: Path) -> Any:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            f"'{path}' needs pyarrow, which is not installed.", "pip install 'portwright[arrow]'"
        ) from error
    return pyarrow


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(
        f"'{path}' cannot be read: {reason}.", "It may be cut off or of another format; write it anew."
    )
