"""A batch made from the indices of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate

from portwright.data.columns import Indices
from portwright.data.draws import Draws
from portwright.data.failures import Failure, describe, name_sample, name_samples
from portwright.data.gather import GatherDataset, check_indices
from portwright.data.seeding import derive_seed

# Called with the place in its batch of the sample that is read next; -1: no single sample.
Mark = Callable[[int], None]
IndexKind = Literal["list", "tensor", "array"]  # the form of indices that a fetch reads fastest


class SampleFetch:
    """Reads samples one by one, or by the data set's `__getitems__`, and collates them, as DataLoader does."""

    takes: IndexKind = "list"

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], is_batched: bool, seed: int) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._is_batched = is_batched
        self._epoch = -1
        self._gathering = [each for each in inside(dataset) if isinstance(each, GatherDataset)]
        for each in self._gathering:
            each.seed = derive_seed(seed, "draws")

    def __call__(self, indices: Any, epoch: int, mark: Mark | None = None) -> Any:
        """The batch, or a Failure where it could not be made."""
        if epoch != self._epoch:
            self._epoch = epoch
            for each in self._gathering:
                each.set_epoch(epoch)
        if not self._is_batched:
            return self._fetch_whole(indices)
        dataset = self.dataset
        getitems = getattr(dataset, "__getitems__", None)
        samples: list[Any] = []
        if getitems:
            try:
                samples = getitems(indices)
            except Exception as error:
                return _load_failure(find_unreadable(dataset, getitems, indices), error)
        else:
            try:
                for index in indices:
                    if mark is not None:
                        mark(len(samples))
                    samples.append(dataset[index])
            except Exception as error:
                return _load_failure(name_sample(dataset, list(indices)[len(samples)]), error)
        if mark is not None:
            mark(-1)
        try:
            return self._collate_fn(samples)
        except Exception as error:
            return Failure("collate", self._find_uncollatable(indices, samples), error, describe(error))

    def _fetch_whole(self, index: Any) -> Any:
        where = name_sample(self.dataset, index)
        try:
            batch = self.dataset[index]
        except Exception as error:
            return _load_failure(where, error)
        try:
            return self._collate_fn(batch)
        except Exception as error:
            return Failure("collate", where, error, describe(error))

    def _find_uncollatable(self, indices: Sequence[Any], samples: Any) -> str:
        named = list(indices)
        if not isinstance(samples, (list, tuple)) or len(samples) != len(named):
            return name_samples(named)
        for index, sample in zip(named, samples, strict=True):
            if not self._collates([sample]):
                return name_sample(self.dataset, index)
        for index, sample in zip(named[1:], samples[1:], strict=True):
            if not self._collates([samples[0], sample]):
                return f"{name_sample(self.dataset, named[0])} and {name_sample(self.dataset, index)}"
        return name_samples(named)

    def _collates(self, samples: list[Any]) -> bool:
        try:
            self._collate_fn(samples)
        except Exception:
            return False
        return True


class TensorFetch:
    """Gathers a whole batch of a TensorDataset by one operation a tensor."""

    takes: IndexKind = "tensor"

    def __init__(
        self, tensors: tuple[torch.Tensor, ...], chosen: torch.Tensor | None, careful: SampleFetch
    ) -> None:
        self.dataset = careful.dataset
        self._tensors = tensors
        self._chosen = chosen  # what a Subset selects
        self._careful = careful

    def __call__(self, indices: Any, epoch: int, mark: Mark | None = None) -> Any:
        try:
            places = indices if isinstance(indices, torch.Tensor) else torch.tensor(indices)
            if places.dtype != torch.int64:
                raise TypeError(f"indices of type {places.dtype}")
            if self._chosen is not None:
                places = self._chosen.index_select(0, places)
            return [tensor.index_select(0, places.to(tensor.device)) for tensor in self._tensors]
        except (IndexError, RuntimeError, TypeError, ValueError):
            # Indices from the user's sampler may be negative or wrong: reading one by one takes the former and names the latter.
            listed = indices.tolist() if isinstance(indices, torch.Tensor) else indices
            return self._careful(listed, epoch, mark)


class GatherFetch:
    """Asks a GatherDataset for a whole batch; its draws depend only on the run's seed, the epoch and the samples."""

    takes: IndexKind = "array"

    def __init__(self, dataset: Any, inner: GatherDataset, chosen: Indices | None, seed: int) -> None:
        self.dataset = dataset
        self.inner = inner
        self._chosen = chosen  # what a Subset selects
        self._seed = derive_seed(seed, "draws")
        self._length = len(inner)

    def __call__(self, indices: Any, epoch: int, mark: Mark | None = None) -> Any:
        try:
            return self._gather(indices, epoch)
        except Exception as error:
            where = find_unreadable(self.dataset, lambda few: self._gather(few, epoch), indices)
            return _load_failure(where, error)

    def _gather(self, indices: Any, epoch: int) -> dict[str, torch.Tensor]:
        if type(indices) is not np.ndarray:
            limit = self._length if self._chosen is None else len(self._chosen)
            indices = check_indices(indices, limit)
        if self._chosen is not None:
            indices = self._chosen[indices]
        return self.inner.tensors(indices, Draws(self._seed, epoch, indices))


Fetch = SampleFetch | TensorFetch | GatherFetch


def make_fetch(loader: DataLoader[Any], seed: int) -> Fetch:
    """Chooses the quickest way to make the batches that this DataLoader would make."""
    collate_fn: Any = loader.collate_fn
    careful = SampleFetch(loader.dataset, collate_fn, loader.batch_sampler is not None, seed)
    if loader.batch_sampler is None or collate_fn is not default_collate:
        return careful
    dataset: Any = loader.dataset
    chosen: torch.Tensor | None = None
    while type(dataset) is Subset:
        inner = _as_indices(dataset.indices)
        if inner is None:
            return careful
        if chosen is not None and not _is_within(chosen, len(inner)):
            return careful
        chosen = inner if chosen is None else inner[chosen]
        dataset = dataset.dataset
    if chosen is not None and not _is_within(chosen, len(dataset)):
        return careful
    # Samples that a subclass's own __getitem__ changes do not come from `gather` alone.
    names = ("__getitem__", "__getitems__")
    if isinstance(dataset, GatherDataset) and all(
        getattr(type(dataset), name) is getattr(GatherDataset, name) for name in names
    ):
        return GatherFetch(loader.dataset, dataset, None if chosen is None else chosen.numpy(), seed)
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return careful
    if any(type(tensor) is not torch.Tensor or tensor.layout != torch.strided for tensor in dataset.tensors):
        return careful
    return TensorFetch(dataset.tensors, chosen, careful)


def inside(dataset: Any) -> Iterator[Any]:
    """A data set, and those that it wraps."""
    yield dataset
    if isinstance(dataset, Subset):
        yield from inside(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for each in dataset.datasets:
            yield from inside(each)


def find_unreadable(dataset: Any, read: Callable[[list[Any]], Any], indices: Sequence[Any]) -> str:
    """Finds the sample that cannot be read, by reading each alone, and names it."""
    listed = indices.tolist() if isinstance(indices, np.ndarray) else indices
    for index in listed:
        try:
            read([index])
        except Exception:
            return name_sample(dataset, index)
    return name_samples(listed)


def _as_indices(indices: Any) -> torch.Tensor | None:
    try:
        chosen = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError):
        return None
    if chosen.dim() != 1 or chosen.dtype not in (torch.int64, torch.int32):
        return None
    return chosen.to(torch.int64)


def _is_within(indices: torch.Tensor, size: int) -> bool:
    return len(indices) == 0 or (int(indices.min()) >= 0 and int(indices.max()) < size)


def _load_failure(where: str, error: Exception) -> Failure:
    return Failure("load", where, error, describe(error))
