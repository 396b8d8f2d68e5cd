"""Numbers from files that are read into memory: npy, npz, Parquet, Arrow, CSV and JSONL."""

from __future__ import annotations

import csv
import importlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays
from portwright.errors import UserError, suggest
from portwright.job.long_cells import begin_long_cells, end_long_cells

MOST_TEXT_BYTES = 1 << 30  # of a CSV or JSONL file: a number takes ten times its text while it is read
MOST_TABLE_BYTES = 8 << 30
IN_MEMORY = (".csv", ".jsonl", ".npz", ".parquet", ".arrow", ".feather")
_TOO_LARGE = "Pack it once, in files that are smaller than that (`portwright data pack FILES --out FOLDER`), and read the store."


def read_npy(path: Path, names: Sequence[str] | None) -> Arrays:
    """One field, named as the file; memory-mapped."""
    check_names(path, [path.stem], names)
    try:
        return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False)}
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(path, "npy", error) from error


def read_npz(path: Path, names: Sequence[str] | None) -> Arrays:
    try:
        # A handle of our own: numpy leaves its open where the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in check_names(path, archive.files, names)}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise _unreadable(path, "npz", error) from error


def read_arrow(path: Path, names: Sequence[str] | None) -> Arrays:
    """Columns of a Parquet or Arrow file: numbers, and lists of numbers that are as long in every row."""
    pyarrow = _import_pyarrow(path)
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                wanted = check_names(path, file.schema_arrow.names, names)
                table = file.read(columns=wanted)
        else:
            with pyarrow.memory_map(str(path)) as source:
                try:
                    table = pyarrow.ipc.open_file(source).read_all()
                except pyarrow.ArrowInvalid:
                    source.seek(0)
                    table = pyarrow.ipc.open_stream(source).read_all()
                table = table.select(check_names(path, table.column_names, names))
                return {name: _from_arrow(path, name, table[name]) for name in table.column_names}
        return {name: _from_arrow(path, name, table[name]) for name in table.column_names}
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, "Parquet or Arrow", error) from error


def _from_arrow(path: Path, name: str, column: Any) -> npt.NDArray[Any]:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise UserError(f"{path}: record {row} has no '{name}'.", "Fill it in, or leave the record out.")
    column = column.combine_chunks()
    if hasattr(column, "chunks"):
        column = column.chunk(0) if column.num_chunks else column
    shape, kind = [len(column)], column.type
    while hasattr(kind, "value_type"):
        lengths = (
            column.value_lengths().to_numpy(zero_copy_only=False)
            if hasattr(column, "value_lengths")
            else None
        )
        if lengths is not None and len(lengths):
            if (lengths != lengths[0]).any():
                row = int(np.flatnonzero(lengths != lengths[0])[0])
                raise _ragged(path, row, name, int(lengths[row]), int(lengths[0]))
            width = int(lengths[0])
        else:
            width = getattr(kind, "list_size", 0)
        shape.append(width)
        column = column.flatten()
        if column.null_count:
            place = column.is_null().to_pylist().index(True)
            record = place // max(1, int(np.prod(shape[1:])))
            raise UserError(
                f"{path}: record {record} has nothing at a place of the list '{name}'.",
                "Fill it in, or leave the record out.",
            )
        kind = column.type
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path}: '{name}' is {kind}, which is no number.", "Name the fields to read.")
    return np.array(array).reshape(shape)


def read_csv(path: Path, names: Sequence[str] | None) -> Arrays:
    """A heading, then a record a line; a cell is a number, or a list of numbers in brackets."""
    begin_long_cells()
    try:
        with _open_text(path) as file:
            reader = csv.reader(file, strict=True)
            heading = next(reader, [])
            _check_heading(path, heading)
            wanted = check_names(path, heading, names)
            places = [heading.index(name) for name in wanted]
            records = []
            for row in reader:
                if len(row) != len(heading):
                    if not row:
                        continue
                    raise UserError(
                        f"{path}, line {reader.line_num}: {len(row)} cells where the heading has {len(heading)}.",
                        "Mend that line; the file may be cut off.",
                    )
                records.append([_parse(path, reader.line_num, heading[at], row[at]) for at in places])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, "CSV", error) from error
    finally:
        end_long_cells()
    return _stack(path, wanted, records)


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    """A first record must not be taken for a heading: it would be lost."""
    for name in heading:
        if not name.strip() or heading.count(name) > 1:
            what = f"'{name}' {heading.count(name)} times" if name.strip() else "a column without a name"
            raise UserError(f"{path}, line 1: the heading has {what}.", "Give each column a name of its own.")
        try:
            json.loads(name)
        except (ValueError, RecursionError):
            continue
        raise UserError(
            f"{path}, line 1: '{name[:40]}' is a value, and the first line names the columns.",
            "Put a heading before the records.",
        )


def read_jsonl(path: Path, names: Sequence[str] | None) -> Arrays:
    """An object a line, whose values are numbers, or lists of numbers."""
    records: list[list[Any]] = []
    wanted: list[str] = []
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                record = _parse(path, number, "", line)
                if not isinstance(record, dict):
                    raise UserError(
                        f"{path}, line {number}: {type(record).__name__} instead of an object.", "Mend it."
                    )
                wanted = wanted or check_names(path, list(record), names)
                for name in wanted:
                    if name not in record:
                        raise UserError(f"{path}, line {number}: no '{name}'.", suggest(name, record))
                records.append([record[name] for name in wanted])
    except UnicodeDecodeError as error:
        raise _unreadable(path, "JSONL", error) from error
    return _stack(path, wanted, records)


def check_names(path: Path, found: Sequence[str], names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if name not in found:
            raise UserError(f"{path} has no field '{name}'.", suggest(name, found))
    return list(found if names is None else names)


def _open_text(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise _unreadable(path, "text", error) from error


def check_memory(files: Sequence[Path]) -> None:
    """Refuses files that are too much for memory, one by one or together."""
    for endings, most in (((".csv", ".jsonl"), MOST_TEXT_BYTES), (IN_MEMORY, MOST_TABLE_BYTES)):
        read = [path for path in files if path.suffix in endings]
        try:
            total = sum(path.stat().st_size for path in read)
        except OSError as error:
            raise UserError(
                f"cannot read {error.filename}: {error.strerror}.", "Correct the path."
            ) from error
        if total > most:
            what = f"{read[0]} has" if len(read) == 1 else f"{read[0]} and {len(read) - 1} more files have"
            raise UserError(
                f"{what} {total >> 20} MiB and would have to be read into memory; {most >> 20} MiB is the most.",
                _TOO_LARGE,
            )


def _parse(path: Path, line: int, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text.strip() if len(text) <= 40 else f"{text[:40]}…"
        what = (
            f"'{name}' is {shown!r}, which is no number or list of numbers"
            if name
            else f"not JSON: {shown!r}"
        )
        raise UserError(
            f"{path}, line {line}: {what}.", "Mend that line; the file may be cut off."
        ) from error


def _stack(path: Path, names: Sequence[str], records: Sequence[Sequence[Any]]) -> Arrays:
    if not records:
        raise UserError(f"{path} holds no record.", "Name a file that has one.")
    return {name: _as_array(path, name, [row[at] for row in records]) for at, name in enumerate(names)}


def _as_array(path: Path, name: str, values: list[Any]) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
        is_regular = array.dtype.kind in "biuf"
    except (ValueError, OverflowError):
        is_regular = False
    if is_regular and array.dtype.kind == "f" and np.abs(array).max(initial=0) >= 2.0**63:
        # numpy makes floats of whole numbers that neither int64 nor uint64 holds all of.
        is_regular = not any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
    if not is_regular:
        raise _find_odd(path, name, values)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind in "iu" and np.can_cast(np.min_scalar_type(array.max(initial=0)), np.int32):
        return array.astype(np.int32) if array.min(initial=0) >= -(2**31) else array
    return array


def _find_odd(path: Path, name: str, values: list[Any]) -> UserError:
    first: tuple[int, ...] | None = None
    for record, value in enumerate(values):
        try:
            array = np.asarray(value)
            kind = array.dtype.kind
        except (ValueError, OverflowError):
            kind = "O"
        if kind not in "biuf":
            return UserError(
                f"{path}: record {record} has {str(value)[:40]!r} in '{name}', which is no number or regular list of them.",
                "Mend the record, or name the fields to read.",
            )
        if first is None:
            first = array.shape
        elif array.shape != first:
            return _ragged(path, record, name, array.shape, first)
    return UserError(f"{path}: '{name}' holds numbers that no array can.", "Name the fields to read.")


def _ragged(path: Path, record: int, name: str, found: Any, wanted: Any) -> UserError:
    return UserError(
        f"{path}: record {record} has {found} values in '{name}' where the first has {wanted}.",
        "Pad records to one length.",
    )


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as {kind}: {error}.", "It may be cut off; fetch or write it anew."
    )


def _import_pyarrow(path: Path) -> Any:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.ipc")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            f"{path} needs pyarrow, which is not installed.", "Install it: pip install 'portwright[arrow]'."
        ) from error
    return pyarrow
