"""HDF5 files: contiguous data sets are memory-mapped without the library, chunked ones are read chunk by chunk."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from portwright.data.columns import Arrays, Indices, describe, same_length
from portwright.data.manifest import Field
from portwright.errors import UserError, suggest
from portwright.extras import missing

HDF5_ENDINGS = (".h5", ".hdf5")
ZOO_FIELDS = ("input_ids", "attention_mask", "labels")  # along axis 1 of the zoo's `data`
MOST_BYTES_IN_MEMORY = 2 << 30  # of chunked data sets of one file


class Hdf5Columns:
    """Data sets of an HDF5 file by name, `group/name` inside of groups.

    A single data set `data` of [records, 3, length] is the model zoo's: input_ids, attention_mask and labels. Chunked data
    sets up to `MOST_BYTES_IN_MEMORY` are read into memory at once; larger ones, or all without `in_memory`, are read again
    by each batch, every chunk that it touches. Each process opens the file itself: handles do not survive a fork.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, in_memory: bool = True) -> None:
        self.where = str(path)
        self.is_slow = False  # chunks are read anew for each batch
        self._path, self._in_memory = path, in_memory
        self._handle: tuple[int, Any] | None = None
        with open_hdf5(path) as file:
            found: dict[str, Any] = {}
            kind = importlib.import_module("h5py").Dataset
            file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, kind) else None)
            self._is_zoo = _is_zoo(found, names)
            wanted = ["data"] if self._is_zoo else list(found) if names is None else list(names)
            for name in wanted:
                if name not in found:
                    raise UserError(f"{path} has no data set '{name}'.", suggest(name, found))
            fields = [describe(self.where, name, found[name]) for name in wanted]
            self._length = same_length(self.where, {name: found[name].shape[0] for name in wanted})
            self._mapped: Arrays = {}
            self._chunked: dict[str, int] = {}  # records of a chunk
            self._load(found, wanted)
        if self._is_zoo:
            length = fields[0].shape[1]
            fields = [Field(name, fields[0].dtype, (length,)) for name in ZOO_FIELDS]
        self.fields = tuple(fields)

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        names = [field.name for field in self.fields]
        return {"path": self._path, "names": names, "in_memory": self._in_memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def gather(self, indices: Indices) -> Arrays:
        batch = {name: array.take(indices, axis=0) for name, array in self._mapped.items()}
        if self._chunked:
            file = self._own_handle()
            for name, step in self._chunked.items():
                batch[name] = _read_chunks(file[name], step, indices)
        if self._is_zoo:
            rows = batch["data"]
            return {name: rows[:, place] for place, name in enumerate(ZOO_FIELDS)}
        return {field.name: batch[field.name] for field in self.fields}

    def _load(self, found: dict[str, Any], wanted: list[str]) -> None:
        total = sum(found[name].nbytes for name in wanted if _offset(found[name]) is None)
        for name in wanted:
            dataset, offset = found[name], _offset(found[name])
            if dataset.shape[0] == 0:
                self._mapped[name] = np.empty(dataset.shape, dtype=dataset.dtype)
            elif offset is not None:
                with reading(self._path, name):
                    mapped = np.memmap(self._path, dataset.dtype, "r", offset, dataset.shape)
                self._mapped[name] = mapped.view(np.ndarray)
            elif self._in_memory and total <= MOST_BYTES_IN_MEMORY:
                with reading(self._path, name):
                    self._mapped[name] = dataset[()]
            else:
                self._chunked[name] = dataset.chunks[0] if dataset.chunks else 1024
                self.is_slow = True

    def _own_handle(self) -> Any:
        if self._handle is None or self._handle[0] != os.getpid():
            self._handle = (os.getpid(), open_hdf5(self._path))
        return self._handle[1]


def open_hdf5(path: Path) -> Any:
    try:
        h5py: Any = importlib.import_module("h5py")  # which has no types
        return h5py.File(path, "r")
    except ImportError as error:
        raise missing("h5py", f"'{path}'") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}.", "Correct the path.") from error
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be read as HDF5: {error}.", "It may be cut off; fetch or write it anew."
        ) from error


def _is_zoo(found: dict[str, Any], names: Sequence[str] | None) -> bool:
    if "data" not in found or not (names is None or tuple(names) == ZOO_FIELDS):
        return False
    shape = found["data"].shape
    is_alone = len(found) == 1 or names is not None
    return is_alone and len(shape) == 3 and shape[1] == 3


def _offset(dataset: Any) -> int | None:
    """Where a data set's plain bytes begin in its file; None where it is not stored so."""
    if dataset.chunks is not None or dataset.external or dataset.is_virtual or dataset.compression:
        return None
    offset = dataset.id.get_offset()
    return None if offset is None else int(offset)


def _read_chunks(dataset: Any, step: int, indices: Indices) -> Any:
    out = np.empty((len(indices), *dataset.shape[1:]), dtype=dataset.dtype)
    chunk_of = indices // step
    for chunk in np.unique(chunk_of).tolist():
        places = np.flatnonzero(chunk_of == chunk)
        low = chunk * step
        with reading(dataset.file.filename, f"{dataset.name}, records {low} to {low + step - 1}"):
            out[places] = dataset[low : low + step][indices[places] - low]
    return out


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"{path}: {what} cannot be read: {error}.", "It may be damaged; fetch or write it anew."
        ) from error
