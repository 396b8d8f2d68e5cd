"""The indices of the samples in each batch of each epoch, for data sets that are read by index."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from portwright.data.failures import describe, too_short_error
from portwright.data.fetch import IndexKind
from portwright.data.seeding import RandomStream, derive_seed, make_generator
from portwright.errors import UserError

_BATCHES_A_DRAW = 16  # batches asked of a sampler at once, since entering a RandomStream takes 100 µs


class Order:
    """Gives the indices of each batch of an epoch, from any batch on."""

    is_repeatable = True  # whether an epoch may be asked for again, in any order
    is_exact = True  # whether num_batches is certain, not just what a sampler says

    def __init__(
        self, num_items: int | None, batch_size: int | None, drop_last: bool, *, is_batched: bool
    ) -> None:
        self.batch_size = batch_size  # None: not one size, or one index is one batch
        self.is_batched = is_batched  # whether an item of the order is a list of indices
        self.num_batches = num_items  # in an epoch; None where it is not known beforehand
        self.last_size: int | None = None  # samples in an epoch's last batch
        if num_items is not None and batch_size is not None:
            self.num_batches, rest = divmod(num_items, batch_size)
            self.last_size = batch_size if self.num_batches else None
            if rest and not drop_last:
                self.num_batches += 1
                self.last_size = rest

    def batches(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        raise NotImplementedError


def is_resumed_by_itself(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def iterates_like(thing: Any, base: type) -> bool:
    """Whether an object iterates as its base class does, so that one of ours may replace it.

    A subclass with an `__iter__` of its own does not, unless it exists only to be resumable, as torchdata's do.
    """
    if not isinstance(thing, base):
        return False
    return type(thing).__iter__ is base.__iter__ or is_resumed_by_itself(thing)  # type: ignore[attr-defined]


def make_order(loader: DataLoader[Any], *, name: str, seed: int, kind: IndexKind) -> Order:
    """Makes the Order that gives a map-style DataLoader's batches."""
    sampler: Any = loader.sampler
    batch_size, drop_last = None, False
    if loader.batch_sampler is not None:
        if not iterates_like(loader.batch_sampler, BatchSampler):
            return DrawnOrder(loader.batch_sampler, None, False, name=name, seed=seed, is_batched=True)
        plain: Any = loader.batch_sampler
        sampler, batch_size, drop_last = plain.sampler, plain.batch_size, plain.drop_last
    if iterates_like(sampler, SequentialSampler):
        return FixedOrder(_length(sampler, name), batch_size, drop_last, None, kind)
    if iterates_like(sampler, RandomSampler) and not sampler.replacement:
        num_samples = _length(sampler.data_source, name)
        if sampler.num_samples == num_samples:
            return FixedOrder(num_samples, batch_size, drop_last, seed, kind)
    return DrawnOrder(sampler, batch_size, drop_last, name=name, seed=seed, is_batched=batch_size is not None)


def _length(sized: Any, name: str) -> int:
    try:
        return len(sized)
    except (TypeError, NotImplementedError) as error:
        inner = getattr(sized, "data_source", sized)
        raise UserError(
            f"{name}: data set {type(inner).__name__} does not say how many samples it has ({describe(error)}).",
            "Give it __len__, make it an IterableDataset, or pass the DataLoader a sampler.",
        ) from error


class FixedOrder(Order):
    """All samples in batches of one size: in order, or with a seed in a new permutation each epoch."""

    def __init__(
        self,
        num_samples: int,
        batch_size: int | None,
        drop_last: bool,
        shuffle_seed: int | None,
        kind: IndexKind,
    ) -> None:
        super().__init__(num_samples, batch_size, drop_last, is_batched=batch_size is not None)
        self._stride = batch_size or 1
        self._num_samples = num_samples
        self._shuffle_seed = shuffle_seed
        self._kind = kind
        self._has_joined = False

    def join_last(self) -> None:
        """Joins the last two batches into one."""
        assert self.last_size is not None
        assert self.num_batches is not None
        assert self.num_batches > 1
        self.num_batches -= 1
        self.last_size += self._stride
        self._has_joined = True

    def batches(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        stride, num_samples, count = self._stride, self._num_samples, self.num_batches or 0
        permuted: torch.Tensor | None = None
        if self._shuffle_seed is not None:
            permuted = torch.randperm(
                num_samples, generator=make_generator(derive_seed(self._shuffle_seed, epoch))
            )
        if not self.is_batched:
            for number in range(start, count):
                yield number, number if permuted is None else int(permuted[number])
            return
        cut = self._cut_range if permuted is None else _cutter(permuted, self._kind)
        for number in range(start, count):
            low = number * stride
            takes_rest = self._has_joined and number == count - 1
            yield number, cut(low, num_samples if takes_rest else min(low + stride, num_samples))

    def _cut_range(self, low: int, high: int) -> Any:
        if self._kind == "array":
            return np.arange(low, high)
        return torch.arange(low, high) if self._kind == "tensor" else list(range(low, high))


def _cutter(permuted: torch.Tensor, kind: IndexKind) -> Callable[[int, int], Any]:
    if kind == "list":
        return lambda low, high: permuted[low:high].tolist()
    cut = permuted if kind == "tensor" else permuted.numpy()
    return lambda low, high: cut[low:high]


class DrawnOrder(Order):
    """A sampler's indices, made reproducible: seeded per epoch and independent of the process's generators."""

    def __init__(
        self,
        sampler: Any,
        batch_size: int | None,
        drop_last: bool,
        *,
        name: str,
        seed: int,
        is_batched: bool,
    ) -> None:
        try:
            num_items = len(sampler)
        except (TypeError, NotImplementedError):
            num_items = None
        super().__init__(num_items, batch_size, drop_last, is_batched=is_batched)
        self._sampler = sampler
        self._drop_last = drop_last
        self._name = name
        self._seed = seed
        torch_samplers = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
        is_torchs = isinstance(sampler, torch_samplers) and type(sampler).__module__.startswith("torch.")
        self.is_exact = is_torchs or isinstance(sampler, (list, tuple, range))
        # Any other sampler may keep state from epoch to epoch, so that it must iterate over all of them in order.
        self.is_repeatable = self.is_exact or callable(getattr(sampler, "set_epoch", None))
        self._num_passes = 0

    def batches(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        while self._num_passes < epoch and not self.is_repeatable:
            for _ in self._draw(self._num_passes):
                pass
        items = self._draw(epoch)
        stride = self.batch_size or 1
        num_skipped = sum(1 for _ in islice(items, start * stride))
        if start and num_skipped <= (start - 1) * stride:
            raise too_short_error(self._name, f"sampler {type(self._sampler).__name__}", start)
        if self.batch_size is None:
            for number, item in enumerate(items, start):
                yield number, self._as_indices(item) if self.is_batched else item
            return
        number = start
        while indices := list(islice(items, self.batch_size)):
            if len(indices) < self.batch_size and self._drop_last:
                return
            yield number, indices
            number += 1

    def _as_indices(self, item: Any) -> Any:
        if isinstance(item, (list, tuple, torch.Tensor, np.ndarray)):
            return item
        try:
            return list(item)
        except TypeError as error:
            raise UserError(
                f"{self._name}: batch_sampler {type(self._sampler).__name__} gave {item!r}, which is no list of indices.",
                "A batch_sampler gives one list of indices for each batch; single ones belong to sampler=.",
            ) from error

    def _draw(self, epoch: int) -> Iterator[Any]:
        seed = derive_seed(self._seed, "sampler", epoch)
        self._num_passes = epoch + 1
        self._prepare(epoch, seed)
        stream = RandomStream(seed, spotless=True)  # a resumed run enters the stream at other batches
        iterator: Iterator[Any] | None = None
        while True:
            try:
                with stream:
                    if iterator is None:
                        iterator = iter(self._sampler)
                    drawn = list(islice(iterator, _BATCHES_A_DRAW * (self.batch_size or 1)))
            except Exception as error:
                raise UserError(
                    f"{self._name}: sampler {type(self._sampler).__name__} failed (epoch {epoch}): {describe(error)}",
                    "Mend the sampler; iterating over it alone shows the same error.",
                ) from error
            if not drawn:
                return
            yield from drawn

    def _prepare(self, epoch: int, seed: int) -> None:
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)  # type: ignore[union-attr]
            own = getattr(sampler, "generator", seed)
            if own is not None and not isinstance(own, torch.Generator):
                continue
            # A sampler whose generator cannot be replaced keeps its own.
            with contextlib.suppress(AttributeError):
                sampler.generator = make_generator(seed)  # type: ignore[union-attr]
