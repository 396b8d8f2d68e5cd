"""Hooks torch's loaders: one process, an order that depends only on epoch and length, and each batch is reported to the watch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data import dataloader as torch_loaders

from portwright.verify.record_batches import Pass
from portwright.verify.record_steps import Watch

_FORCED = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "persistent_workers": False}


class Loading:
    """Counts the epochs of each data set, and knows the one that is being read."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._begun: dict[int, tuple[Any, int, int]] = {}  # data set, epoch, steps done when it began
        self.epoch: int | None = None
        self.depth = 0

    def begin(self, dataset: Any) -> int:
        """The epoch of a new pass; a pass without training does not count."""
        num_steps = self._watch.num_updates
        kept, epoch, began = self._begun.get(id(dataset), (dataset, -1, -1))
        epoch = max(epoch, 0) if began == num_steps or epoch < 0 else epoch + 1
        self._begun[id(dataset)] = (kept, epoch, num_steps)
        return epoch

    @contextmanager
    def at(self, epoch: int) -> Iterator[None]:
        """Makes samplers give the order of this epoch."""
        self.epoch = epoch
        with self._watch.streams.own("loader", epoch):
            yield


def hook_loaders(watch: Watch, convert: Callable[[Any], Any] | None = None) -> Loading:
    """Hooks torch's loaders; `convert` is applied to every batch."""
    loading = Loading(watch)
    _hook_loader()
    _hook_iterator(watch, loading, convert)
    _hook_shuffling(watch, loading)
    return loading


def _hook_loader() -> None:
    made = DataLoader.__init__
    names = made.__code__.co_varnames[1 : made.__code__.co_argcount]

    @functools.wraps(made)
    def in_one_process(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given.update({name: value for name, value in _FORCED.items() if name in given})
        given.pop("multiprocessing_context", None)
        made(self, **given)

    DataLoader.__init__ = in_one_process  # type: ignore[method-assign]


def _hook_iterator(watch: Watch, loading: Loading, convert: Callable[[Any], Any] | None) -> None:
    kind: Any = torch_loaders._SingleProcessDataLoaderIter
    made, fetch, reset = kind.__init__, kind._next_data, kind._reset

    def begin(self: Any, loader: Any) -> None:
        self._recorded_epoch, self._recorded_batch = loading.begin(loader.dataset), 0
        self.recorded_pass = Pass(loader, seeded=torch.get_rng_state().numpy().tobytes())

    @functools.wraps(made)
    def recorded_init(self: Any, loader: Any, *args: Any) -> None:
        begin(self, loader)
        loading.epoch = self._recorded_epoch
        with watch.streams.own("loader", self._recorded_epoch):
            made(self, loader, *args)

    def recorded_reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader)
        with watch.streams.own("loader", self._recorded_epoch):
            reset(self, loader, *args, **kwargs)

    @functools.wraps(fetch)
    def recorded_fetch(self: Any) -> Any:
        outer = loading.epoch
        loading.epoch = self._recorded_epoch
        loading.depth += 1
        try:
            if watch.rest.is_on and self.recorded_pass.has_trained:
                watch.rest.is_cut = True
                raise StopIteration
            with watch.streams.own("batch", self._recorded_epoch, self._recorded_batch):
                batch = fetch(self)
        except StopIteration:
            watch.batches.exhausted(self)
            raise
        finally:
            loading.epoch = outer
            loading.depth -= 1
        self._recorded_batch += 1
        if convert is not None:
            batch = convert(batch)
        if loading.depth == 0 and not watch.is_paused:
            watch.batches.loaded(self, batch)
        return batch

    kind.__init__, kind._next_data, kind._reset = recorded_init, recorded_fetch, recorded_reset


def _hook_shuffling(watch: Watch, loading: Loading) -> None:
    """Makes every way to shuffle give the same order for an epoch and a length, since a port may use another one."""
    drawn, randperm, num_permuted = RandomSampler.__iter__, torch.randperm, Counter[int]()

    def permute(num_samples: int, epoch: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(watch.streams.derive("order", epoch))
        return randperm(num_samples, generator=generator, device="cpu")

    def epoch_of(dataset: Any) -> int:
        return loading.epoch if loading.epoch is not None else loading.begin(dataset)

    def in_random_order(self: Any) -> Iterator[int]:
        num_samples, epoch = len(self.data_source), epoch_of(self.data_source)
        if not self.replacement and self.num_samples == num_samples:
            yield from permute(num_samples, epoch).tolist()
            return
        own = self.generator
        self.generator = torch.Generator("cpu").manual_seed(watch.streams.derive("order", epoch))
        try:
            yield from drawn(self)
        finally:
            self.generator = own

    def in_subset_order(self: Any) -> Iterator[int]:
        for place in permute(len(self.indices), epoch_of(self)).tolist():
            yield self.indices[place]

    distributed = DistributedSampler.__iter__

    def in_distributed_order(self: Any) -> Iterator[int]:
        if self.num_replicas != 1 or not self.shuffle:
            return distributed(self)
        return iter(permute(len(self.dataset), epoch_of(self.dataset)).tolist())

    @functools.wraps(randperm)
    def permuted_by_hand(n: int, *args: Any, generator: Any = None, **kwargs: Any) -> torch.Tensor:
        if generator is not None or args or watch.streams.is_own or kwargs.get("out") is not None:
            return randperm(n, *args, generator=generator, **kwargs)
        num_permuted[int(n)] += 1
        order = permute(int(n), num_permuted[int(n)] - 1)
        return order.to(**{key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None})

    RandomSampler.__iter__ = in_random_order  # type: ignore[method-assign]
    SubsetRandomSampler.__iter__ = in_subset_order  # type: ignore[method-assign]
    DistributedSampler.__iter__ = in_distributed_order  # type: ignore[method-assign, assignment]
    torch.randperm = permuted_by_hand  # type: ignore[assignment]
