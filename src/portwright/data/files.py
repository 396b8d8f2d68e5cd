"""Opens files of numeric records in any known format, joins them, and packs them into a store."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.columns import ArrayColumns, Arrays, Columns, JoinedColumns
from portwright.data.hdf5 import HDF5_ENDINGS, Hdf5Columns
from portwright.data.manifest import Manifest
from portwright.data.store_writer import StoreWriter
from portwright.data.tables import find_files, open_arrow, read_rows, shorten
from portwright.errors import UserError, suggest

Names = Sequence[str] | None
_TEXT, _ARROW = (".csv", ".jsonl"), (".parquet", ".arrow", ".feather")
ENDINGS = (*HDF5_ENDINGS, ".npy", ".npz", *_ARROW, *_TEXT)
SHARD_BYTES = 256 << 20
MOST_TEXT_BYTES = 1 << 30  # of CSV or JSONL files: a number being read takes ten times its text
MOST_TABLE_BYTES = 8 << 30  # of all files that are read into memory


def open_files(
    places: Sequence[str | Path], names: Names = None, *, interleave: bool = False
) -> JoinedColumns:
    """Opens all files as one. Several .npy files are fields of the same records, each named after its file."""
    files = find_files(places, ENDINGS)
    num_npy = sum(path.suffix.lower() == ".npy" for path in files)
    if num_npy == len(files):
        return JoinedColumns([_join_npy(files, names)])
    if num_npy:
        shown = ", ".join(path.name for path in files[:4])
        raise UserError(f".npy files lie among others ({shown}).", "Keep the formats apart.")
    _check_memory(files, _TEXT, MOST_TEXT_BYTES)
    _check_memory(files, (*_TEXT, *_ARROW, ".npz"), MOST_TABLE_BYTES)
    columns: list[Columns] = [
        Hdf5Columns(path, names)
        if path.suffix.lower() in HDF5_ENDINGS
        else ArrayColumns(path, read_numbers(path, names))
        for path in files
    ]
    return JoinedColumns(columns, interleave=interleave)


def read_numbers(path: Path, names: Names) -> Arrays:
    """Reads the fields `names` of an npz, Parquet, Arrow, CSV or JSONL file; without `names` all."""
    if path.suffix.lower() == ".npz":
        return _read_npz(path, names)
    return _read_arrow(path, names) if path.suffix.lower() in _ARROW else _read_text(path, names)


def _check_memory(files: Sequence[Path], endings: Sequence[str], most: int) -> None:
    read = [path for path in files if path.suffix.lower() in endings]
    total = sum(path.stat().st_size for path in read)
    if total > most:
        what = f"{read[0]} has" if len(read) == 1 else f"{read[0]} and {len(read) - 1} more files have"
        raise UserError(
            f"{what} {total >> 20} MiB and would have to be read into memory; {most >> 20} MiB is the most.",
            "Pack it once, in files that are smaller than that (`portwright data pack FILES --out FOLDER`), and read "
            "the store.",
        )


def _join_npy(files: Sequence[Path], names: Names) -> ArrayColumns:
    wanted = _check_names(files[0].parent, [path.stem for path in files], names)
    arrays: dict[str, Any] = {}
    for path in files:
        if path.stem in wanted:
            if path.stem in arrays:
                raise UserError(f"{path} is a second field '{path.stem}'.", "Give each its own name.")
            try:
                arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise _unreadable(path, "npy", error) from error
    return ArrayColumns(files[0].parent if len(files) > 1 else files[0], arrays)


def _read_npz(path: Path, names: Names) -> Arrays:
    try:
        # We open the file ourselves: numpy would leave it open where the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in _check_names(path, archive.files, names)}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise _unreadable(path, "npz", error) from error


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as {kind}: {error}.", "It may be cut off; fetch or write it anew."
    )


def _read_arrow(path: Path, names: Names) -> Arrays:
    """Reads columns of numbers, and of lists of numbers with one length in all rows."""
    with open_arrow(path) as table:
        wanted = _check_names(path, table.schema.names, names)
        return {name: _from_arrow(path, name, column) for name, column in table.columns(wanted).items()}


def _from_arrow(path: Path, name: str, column: Any) -> npt.NDArray[Any]:
    shape = [len(column)]
    while True:
        if column.null_count:
            record = column.is_null().to_pylist().index(True) // max(1, int(np.prod(shape[1:])))
            what = f"nothing at a place of the list '{name}'" if shape[1:] else f"no '{name}'"
            raise UserError(f"{path}: record {record} has {what}.", "Fill it in, or leave the record out.")
        if not (hasattr(column, "flatten") and hasattr(column.type, "value_type")):
            break
        width = getattr(column.type, "list_size", None)
        if width is None:
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            width = int(lengths[0]) if len(lengths) else 0
            if (lengths != width).any():
                row = int(np.flatnonzero(lengths != width)[0])
                raise _ragged(path, row, name, int(lengths[row]), width)
        shape.append(width)
        column = column.flatten()
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path}: '{name}' is {column.type}, which is no number.", "Name the fields to read.")
    return np.array(array).reshape(shape)


def _read_text(path: Path, names: Names) -> Arrays:
    """Reads JSONL, or CSV whose cells are numbers or lists of numbers in brackets."""
    is_csv = path.suffix.lower() == ".csv"
    wanted: list[str] = []
    records: list[list[Any]] = []

    for row in read_rows(path, on_heading=lambda heading: _check_heading(path, heading, names)):
        wanted = wanted or _check_names(path, list(row.values), names)
        try:
            cells = [row.values[name] for name in wanted]
        except KeyError as error:
            raise UserError(
                f"{path}, {row.place}: no '{error.args[0]}'.", suggest(error.args[0], row.values)
            ) from None
        records.append(
            [_parse(path, row.place, *each) for each in zip(wanted, cells, strict=True)] if is_csv else cells
        )
    if not records:
        raise UserError(f"{path} holds no record.", "Name a file that has one.")
    return {name: _as_array(path, name, [row[at] for row in records]) for at, name in enumerate(wanted)}


def _check_heading(path: Path, heading: Sequence[str], names: Names) -> None:
    """Refuses a first line that is a record and no heading, since it would be lost; only columns asked for are checked."""
    for name in heading if names is None else names:
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


def _check_names(path: Path, found: Sequence[str], names: Names) -> list[str]:
    for name in names or ():
        if name not in found:
            raise UserError(f"{path} has no field '{name}'.", suggest(name, found))
    return list(found if names is None else names)


def _parse(path: Path, place: str, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}, {place}: '{name}' is {shorten(text.strip())}, which is no number or list of numbers.",
            "Mend that line; the file may be cut off.",
        ) from error


def _as_array(path: Path, name: str, values: list[Any]) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
        is_regular = array.dtype.kind in "biuf"
    except (ValueError, OverflowError):
        is_regular = False
    if is_regular and array.dtype.kind == "f" and np.abs(array).max(initial=0) >= 2.0**63:
        # Where neither int64 nor uint64 can hold all of the whole numbers, numpy would make them floats.
        is_regular = not any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
    if not is_regular:
        raise _irregular(path, name, values)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind in "iu" and np.can_cast(np.min_scalar_type(array.max(initial=0)), np.int32):
        return array.astype(np.int32) if array.min(initial=0) >= -(2**31) else array
    return array


def _irregular(path: Path, name: str, values: list[Any]) -> UserError:
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


def pack_files(
    places: Sequence[str | Path],
    folder: Path,
    names: Names = None,
    *,
    interleave: bool = False,
) -> Manifest:
    """Copies files of records into a store, one shard at a time; after a kill, a second call continues."""
    files = find_files(places, ENDINGS)
    made_by = {
        "command": "pack",
        "files": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files],
        "interleave": interleave,
    }
    is_together = interleave or files[0].suffix.lower() == ".npy"
    groups = [files] if is_together else [[path] for path in files]  # one file at a time in memory
    writer: StoreWriter | None = None
    number = 0
    for group in groups:
        columns = open_files(group, names, interleave=interleave)
        if writer is None:
            writer = StoreWriter(folder, columns.fields, made_by=made_by)
            step = max(1, SHARD_BYTES // sum(field.row_bytes for field in columns.fields))
        elif columns.fields != writer.header.fields:
            JoinedColumns([open_files(groups[0], names), columns])  # raises, and names the difference
        for low in range(0, max(len(columns), 1), step):
            if not writer.has_shard(number):
                rows = np.arange(low, min(low + step, len(columns)))
                writer.write_shard(number, columns.gather(rows))
            number += 1
    assert writer is not None
    return writer.finish(number)
