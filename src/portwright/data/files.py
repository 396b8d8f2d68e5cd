"""Files of records, whatever their format: found, opened, joined, and packed into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from portwright.data import tables
from portwright.data.columns import ArrayColumns, Arrays, Columns, JoinedColumns
from portwright.data.hdf5 import Hdf5Columns
from portwright.data.manifest import Manifest
from portwright.data.store_writer import StoreWriter
from portwright.errors import UserError, suggest

Names = Sequence[str] | None
_READERS: dict[str, Callable[[Path, Names], Arrays]] = {
    ".npz": tables.read_npz,
    ".parquet": tables.read_arrow,
    ".arrow": tables.read_arrow,
    ".feather": tables.read_arrow,
    ".csv": tables.read_csv,
    ".jsonl": tables.read_jsonl,
}
_HDF5 = (".h5", ".hdf5")
ENDINGS = (*_HDF5, ".npy", *_READERS)
SHARD_BYTES = 256 << 20


def find_files(places: Sequence[str | Path]) -> list[Path]:
    """The files named, and those of the folders named, in the order of their names."""
    files: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            inside = sorted(path for path in place.iterdir() if path.suffix in ENDINGS)
            if not inside:
                raise UserError(f"{place} holds no file of records.", f"Formats: {', '.join(ENDINGS)}.")
            files += inside
        elif not place.exists():
            raise UserError(f"there is no {place}.", "Correct the path.")
        elif place.suffix not in ENDINGS:
            raise UserError(f"{place} is of no format known here.", suggest(place.suffix, ENDINGS))
        else:
            files.append(place)
    if not files:
        raise UserError("no file of records is named.", f"Formats: {', '.join(ENDINGS)}.")
    return files


def open_files(
    places: Sequence[str | Path], names: Names = None, *, interleave: bool = False
) -> JoinedColumns:
    """All files as one. Several .npy files are fields of the same records, each named as its file."""
    files = find_files(places)
    kinds = {".npy" if path.suffix == ".npy" else "other" for path in files}
    if kinds == {".npy"}:
        return JoinedColumns([_join_npy(files, names)])
    if len(kinds) > 1:
        raise UserError(
            f".npy files lie among others ({', '.join(path.name for path in files[:4])}).",
            "Keep the formats apart.",
        )
    tables.check_memory(files)
    return JoinedColumns([_open_file(path, names) for path in files], interleave=interleave)


def _open_file(path: Path, names: Names) -> Columns:
    if path.suffix in _HDF5:
        return Hdf5Columns(path, names)
    return ArrayColumns(path, _READERS[path.suffix](path, names))


def _join_npy(files: Sequence[Path], names: Names) -> ArrayColumns:
    wanted = tables.check_names(files[0].parent, [path.stem for path in files], names)
    arrays: dict[str, Any] = {}
    for path in files:
        if path.stem in wanted:
            if path.stem in arrays:
                raise UserError(f"{path} is a second field '{path.stem}'.", "Give each its own name.")
            arrays |= tables.read_npy(path, None)
    return ArrayColumns(files[0].parent if len(files) > 1 else files[0], arrays)


def pack_files(
    places: Sequence[str | Path],
    folder: Path,
    names: Names = None,
    *,
    interleave: bool = False,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Copies files of records into a store, a shard at a time; a second call goes on where a killed one stopped."""
    files = find_files(places)
    made_by = {
        "command": "pack",
        "files": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files],
        "interleave": interleave,
    }
    is_together = interleave or files[0].suffix == ".npy"
    groups = [files] if is_together else [[path] for path in files]  # one file at a time in memory
    writer: StoreWriter | None = None
    number = 0
    for place, group in enumerate(groups):
        columns = open_files(group, names, interleave=interleave)
        if writer is None:
            writer = StoreWriter(folder, columns.fields, made_by=made_by)
            step = max(1, SHARD_BYTES // sum(field.row_bytes for field in columns.fields))
        elif columns.fields != writer.header.fields:
            JoinedColumns([open_files(groups[0], names), columns])  # names the difference
        for low, high in _cut(len(columns), step):
            if not writer.has_shard(number):
                writer.write_shard(number, columns.gather(np.arange(low, high)))
            number += 1
        on_file(place + 1, len(groups))
    assert writer is not None
    return writer.finish(number)


def _cut(total: int, step: int) -> Iterator[tuple[int, int]]:
    for low in range(0, max(total, 1), step):
        yield low, min(low + step, total)
