"""Data sets that read a whole batch at once: of arrays, of files of records, of a store, or a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from portwright.data.columns import Arrays, Indices, Records, StackedArrays
from portwright.data.draws import Draws
from portwright.data.files import open_files
from portwright.data.store import Store, Verify
from portwright.errors import UserError

Transform = Callable[[Arrays, Draws], Arrays]  # vectorised over the batch

# These types save disk space, but hardly any op of torch takes them.
_WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
_NATIVE_KINDS = "biufc"


class GatherDataset(Dataset[dict[str, torch.Tensor]]):
    """A data set that reads whole batches; subclasses define `__len__` and `gather`.

    A plain DataLoader can read it sample by sample; `draws` then depend on `seed` and on the epoch last given to
    `set_epoch`.
    """

    seed = 0
    epoch = 0

    def __len__(self) -> int:
        raise NotImplementedError

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        """The samples of these indices, in their order, stacked: each array is [len(indices), ...]."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def tensors(self, indices: Indices, draws: Draws | None = None) -> dict[str, torch.Tensor]:
        """What `gather` gives, as tensors; uint16 becomes int32, uint32 int64."""
        arrays = self.gather(indices, draws)
        return {name: as_tensor(name, array, len(indices)) for name, array in arrays.items()}

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        return self._samples([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[dict[str, torch.Tensor]]:
        return self._samples(indices)

    def _samples(self, indices: Sequence[Any]) -> list[dict[str, torch.Tensor]]:
        places = check_indices(indices, len(self))
        tensors = self.tensors(places, Draws(self.seed, self.epoch, places))
        return [{name: tensor[row] for name, tensor in tensors.items()} for row in range(len(places))]


def check_indices(indices: Sequence[Any], num_samples: int) -> Indices:
    """Indices as numpy takes them; negative ones count from the end, as in a list."""
    places = np.asarray(indices)
    if places.size == 0:
        return np.zeros(0, dtype=np.int64)
    if places.dtype.kind not in "iu":
        raise TypeError(f"indices have to be whole numbers, not {places.dtype}: {str(indices)[:80]}")
    places = places.astype(np.int64)
    if places.min() < 0:
        places = np.where(places < 0, places + num_samples, places)
    if places.min() < 0 or places.max() >= num_samples:
        bad = places[(places < 0) | (places >= num_samples)][0]
        raise IndexError(f"index {bad} is not one of {num_samples} samples")
    return places


def as_tensor(name: str, array: Any, num_samples: int) -> torch.Tensor:
    """One field of a batch as a tensor with memory of its own."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _NATIVE_KINDS:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise UserError(
            f"field '{name}' of a batch is {kind}, which no tensor can hold.",
            "gather and transform give numpy arrays of numbers or bools; encode text as numbers.",
        )
    if array.ndim == 0 or len(array) != num_samples:
        raise UserError(
            f"field '{name}' has shape {array.shape} in a batch of {num_samples} samples.",
            "The first dimension of every array that gather and transform give counts the samples.",
        )
    wide = _WIDENED.get(array.dtype)
    if wide is not None:
        return torch.from_numpy(array.astype(wide))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy()
    return torch.from_numpy(array)


class RecordDataset(GatherDataset):
    """Stored records; `transform` changes each batch before it is returned."""

    transform: Transform | None = None
    stored: Records

    def __len__(self) -> int:
        return len(self.stored)

    def records(self, indices: Indices) -> Arrays:
        """The records with these numbers as stored, each field stacked."""
        return self.stored.gather(indices)

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        batch = self.records(indices)
        if self.transform is None:
            return batch
        return self.transform(batch, Draws(self.seed, self.epoch, indices) if draws is None else draws)


class ArrayDataset(RecordDataset):
    """Samples in arrays, in memory or memory-mapped; `transform` changes each batch before it is returned."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], transform: Transform | None = None) -> None:
        if not arrays:
            raise UserError("ArrayDataset got no array.", "Give at least one, as {'input_ids': array}.")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in _NATIVE_KINDS:
                kind = f"{array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                raise UserError(
                    f"ArrayDataset got {kind} for '{name}'.",
                    "Give numpy arrays of numbers or bools whose first dimension counts the samples.",
                )
        stacked = StackedArrays("ArrayDataset", arrays)
        self.stored, self.arrays = stacked, stacked.arrays
        self.transform = transform


class FileDataset(RecordDataset):
    """The records of HDF5, npy, npz, Parquet, Arrow, CSV or JSONL files, or of folders of them, as one data set.

    `fields` names the fields to read (all by default). `interleave` takes one record of each file in turn instead of file
    after file; with shuffle=True it changes nothing of note.
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        *,
        interleave: bool = False,
    ) -> None:
        places = [files] if isinstance(files, str | Path) else list(files)
        self.stored = self.columns = open_files(places, fields, interleave=interleave)
        self.transform = transform


class StoreDataset(RecordDataset):
    """The records of a store that `portwright data prepare` or a StoreWriter made.

    `fields` names the fields to read (all by default). With `vocab_size`, the ids in `ids_field` are checked against it at
    once (default: `input_ids`, or `tokens` as `portwright data prepare` writes them).
    """

    def __init__(
        self,
        folder: str | Path,
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        *,
        verify: Verify = "touch",
        vocab_size: int | None = None,
        ids_field: str | None = None,
    ) -> None:
        self.stored = self.store = Store(folder, fields, verify=verify)
        self.transform = transform
        if vocab_size is not None:
            names = self.store.names
            usual = "tokens" if "tokens" in names and "input_ids" not in names else "input_ids"
            self.store.require_ids(ids_field or usual, vocab_size)


class FirstSamples(GatherDataset):
    """The first samples of another data set."""

    def __init__(self, dataset: GatherDataset, num_samples: int) -> None:
        self.dataset, self._length = dataset, min(num_samples, len(dataset))

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        return self.dataset.gather(indices, Draws(self.seed, self.epoch, indices) if draws is None else draws)
