"""Columns of records, whatever file or array holds them, and several files read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from portwright.data.manifest import DTYPES, Field
from portwright.errors import UserError

Arrays = dict[str, npt.NDArray[Any]]
Indices = npt.NDArray[np.int64]


class Records(Protocol):
    """Records that are gathered by their numbers."""

    def __len__(self) -> int: ...

    def gather(self, indices: Indices) -> Arrays: ...


class Columns(Records, Protocol):
    """The records of one file; each field has one shape."""

    where: str  # names the file in errors
    fields: tuple[Field, ...]


class StackedArrays:
    """Records in arrays, in memory or memory-mapped; `where` names them in errors."""

    def __init__(self, where: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.where = where
        self.arrays = {name: array.view(np.ndarray) for name, array in arrays.items()}
        self._length = same_length(where, {name: len(array) for name, array in arrays.items()})

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Indices) -> Arrays:
        # `take` needs half the time of indexing by an array, for rows of some hundred bytes.
        return {name: array.take(indices, axis=0) for name, array in self.arrays.items()}


class ArrayColumns(StackedArrays):
    """Columns that are arrays."""

    def __init__(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.fields = tuple(describe(str(path), name, array) for name, array in arrays.items())
        super().__init__(str(path), arrays)


def describe(where: str, name: str, array: Any) -> Field:
    """The Field that describes an array [records, ...]; an array without numbers is refused."""
    shape = tuple(array.shape or ())  # the shape of an empty HDF5 data set is None
    if not shape or array.dtype.name not in DTYPES:
        raise UserError(
            f"{where}: '{name}' is {array.dtype} of shape {shape}.",
            f"Fields are [records, ...] of {', '.join(DTYPES)}; leave others out by naming the fields to read.",
        )
    if 0 in array.shape[1:]:
        raise UserError(f"{where}: records of '{name}' have shape {tuple(array.shape[1:])}.", "Leave it out.")
    return Field(name, array.dtype.name, tuple(array.shape[1:]))


def same_length(where: str, lengths: Mapping[str, int]) -> int:
    if not lengths:
        raise UserError(f"{where} holds no field of numbers.", "Name a file that has one.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise UserError(
            f"{where}: its fields differ in their number of records ({shown}).",
            "Name those that belong together.",
        )
    return next(iter(lengths.values()))


class JoinedColumns:
    """Several files as one: file after file or, interleaved, one record of each in turn."""

    def __init__(self, parts: Sequence[Columns], *, interleave: bool = False) -> None:
        first = parts[0]
        for part in parts[1:]:
            if set(part.fields) != set(first.fields):
                raise UserError(
                    f"{part.where} has {_show(part)}, and {first.where} has {_show(first)}.",
                    "Files of one data set have the same fields; name those that they share, or keep them apart.",
                )
        self.where = first.where if len(parts) == 1 else f"{first.where} and {len(parts) - 1} more"
        self.fields = first.fields
        self._parts = list(parts)
        lengths = np.asarray([len(part) for part in parts], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._turns: Indices | None = None
        if interleave and len(parts) > 1:
            part_of = np.repeat(np.arange(len(parts)), lengths)
            local = np.arange(len(self)) - self._starts[part_of]
            self._turns = np.lexsort((part_of, local))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_slow(self) -> bool:
        """Whether some file can only be read in whole chunks."""
        return any(getattr(part, "is_slow", False) for part in self._parts)

    def gather(self, indices: Indices) -> Arrays:
        if self._turns is not None:
            indices = self._turns[indices]
        if len(self._parts) == 1:
            return self._parts[0].gather(indices)
        part_of = np.searchsorted(self._starts, indices, side="right") - 1
        local = indices - self._starts[part_of]
        batch = {f.name: np.empty((len(indices), *f.shape), dtype=f.dtype) for f in self.fields}
        for number in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == number)
            for name, rows in self._parts[number].gather(local[places]).items():
                batch[name][places] = rows
        return batch


def _show(columns: Columns) -> str:
    return ", ".join(f"{field.name} {field.dtype}{list(field.shape)}" for field in columns.fields)
