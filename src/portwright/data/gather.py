"""Data sets that read a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from portwright.data.draws import Draws
from portwright.errors import UserError

Arrays = dict[str, npt.NDArray[Any]]
Indices = npt.NDArray[np.int64]
Transform = Callable[[Arrays, Draws], Arrays]  # vectorised over the batch

# Small on the disk, and hardly any op of torch takes them.
_WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
_NATIVE_KINDS = "biufc"


class GatherDataset(Dataset[dict[str, torch.Tensor]]):
    """A data set whose subclasses give `__len__` and `gather`; a run's loader asks it for whole batches.

    Under a plain DataLoader it works too, sample by sample; there `draws` are those of `seed` and of the epoch last
    told to `set_epoch`.
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
    """One field of a batch as a tensor of its own memory."""
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


class ArrayDataset(GatherDataset):
    """Samples that lie in arrays, in memory or memory-mapped; `transform` sees each batch before it is given out."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], transform: Transform | None = None) -> None:
        if not arrays:
            raise UserError("ArrayDataset got no array.", "Give at least one, as {'input_ids': array}.")
        lengths = {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in _NATIVE_KINDS:
                kind = f"{array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                raise UserError(
                    f"ArrayDataset got {kind} for '{name}'.",
                    "Give numpy arrays of numbers or bools whose first dimension counts the samples.",
                )
            lengths[name] = len(array)
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise UserError(
                f"the arrays of an ArrayDataset differ in their number of samples ({shown}).",
                "Give arrays whose first dimensions are equal.",
            )
        self.arrays = {name: array.view(np.ndarray) for name, array in arrays.items()}
        self.transform = transform
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        # take: half the time of indexing by an array, for rows of some hundred bytes.
        batch = {name: array.take(indices, axis=0) for name, array in self.arrays.items()}
        if self.transform is None:
            return batch
        return self.transform(batch, Draws(self.seed, self.epoch, indices) if draws is None else draws)
