"""A batch made from the indices of its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from portwright.data.failures import Failure, describe, name_sample, name_samples

Mark = Callable[
    [int], None
]  # told the place in its batch of the sample that comes next; -1: none in particular


class SampleFetch:
    """Reads samples one by one, or by the data set's `__getitems__`, and collates them, as DataLoader does."""

    takes_tensors = False

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], is_batched: bool) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._is_batched = is_batched

    def __call__(self, indices: Any, mark: Mark | None = None) -> Any:
        """Gives the batch, or the Failure that stands in its place."""
        if not self._is_batched:
            return self._fetch_whole(indices)
        dataset = self.dataset
        getitems = getattr(dataset, "__getitems__", None)
        samples: list[Any] = []
        if getitems:
            try:
                samples = getitems(indices)
            except Exception as error:
                return _load_failure(self._find_unreadable(getitems, indices), error)
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

    def _find_unreadable(self, getitems: Callable[[list[Any]], Any], indices: Sequence[Any]) -> str:
        for index in indices:
            try:
                getitems([index])
            except Exception:
                return name_sample(self.dataset, index)
        return name_samples(indices)

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

    takes_tensors = True

    def __init__(
        self, tensors: tuple[torch.Tensor, ...], chosen: torch.Tensor | None, careful: SampleFetch
    ) -> None:
        self.dataset = careful.dataset
        self._tensors = tensors
        self._chosen = chosen  # what a Subset selects
        self._careful = careful

    def __call__(self, indices: Any, mark: Mark | None = None) -> Any:
        try:
            places = indices if isinstance(indices, torch.Tensor) else torch.tensor(indices)
            if places.dtype != torch.int64:
                raise TypeError(f"indices of type {places.dtype}")
            if self._chosen is not None:
                places = self._chosen.index_select(0, places)
            return [_gather(tensor, places) for tensor in self._tensors]
        except (IndexError, RuntimeError, TypeError, ValueError):
            # Indices from the user's sampler: negative ones are fine one by one, bad ones are named there.
            return self._careful(indices.tolist() if isinstance(indices, torch.Tensor) else indices, mark)


def _gather(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu":
        places = places.to(tensor.device)
    return tensor.index_select(0, places)


def make_fetch(loader: DataLoader[Any]) -> SampleFetch | TensorFetch:
    """Chooses the quickest way to make the batches that this DataLoader would make."""
    collate_fn: Any = loader.collate_fn
    careful = SampleFetch(loader.dataset, collate_fn, loader.batch_sampler is not None)
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
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return careful
    if any(type(tensor) is not torch.Tensor or tensor.layout != torch.strided for tensor in dataset.tensors):
        return careful
    if chosen is not None and not _is_within(chosen, len(dataset)):
        return careful
    return TensorFetch(dataset.tensors, chosen, careful)


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
