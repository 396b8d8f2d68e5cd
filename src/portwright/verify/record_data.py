"""Loaders of a recorded script: one process, an order that depends on epoch and length alone, each batch told to the watch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import dataloader as torch_loaders

from portwright.verify.record_steps import Watch

_FORCED = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "persistent_workers": False}


class Loading:
    """Epochs of each data set, and the one that is being read."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._begun: dict[int, tuple[Any, int, int]] = {}  # data set, epoch, steps done when it began
        self.epoch: int | None = None
        self.depth = 0

    def begin(self, dataset: Any) -> int:
        """The number of this pass; one in which nothing was trained does not count."""
        num_steps = len(self._watch.steps)
        held, epoch, began = self._begun.get(id(dataset), (dataset, -1, -1))
        epoch = max(epoch, 0) if began == num_steps or epoch < 0 else epoch + 1
        self._begun[id(dataset)] = (held, epoch, num_steps)
        return epoch


def hook_loaders(watch: Watch) -> None:
    loading = Loading(watch)
    _hook_loader()
    _hook_iterator(watch, loading)
    _hook_shuffling(watch, loading)


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


def _hook_iterator(watch: Watch, loading: Loading) -> None:
    kind: Any = torch_loaders._SingleProcessDataLoaderIter
    made, fetch, reset = kind.__init__, kind._next_data, kind._reset

    def begin(self: Any, loader: Any) -> None:
        self._recorded_epoch, self._recorded_batch = loading.begin(loader.dataset), 0

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
            with watch.streams.own("batch", self._recorded_epoch, self._recorded_batch):
                batch = fetch(self)
        except StopIteration:
            watch.batches.exhausted(self)
            raise
        finally:
            loading.epoch = outer
            loading.depth -= 1
        self._recorded_batch += 1
        if loading.depth == 0 and not watch.is_paused:
            watch.batches.loaded(self, batch)
        return batch

    kind.__init__, kind._next_data, kind._reset = recorded_init, recorded_fetch, recorded_reset


def _hook_shuffling(watch: Watch, loading: Loading) -> None:
    drawn = RandomSampler.__iter__

    def in_known_order(self: Any) -> Iterator[int]:
        epoch = loading.epoch if loading.epoch is not None else loading.begin(self.data_source)
        num_samples = len(self.data_source)
        generator = torch.Generator().manual_seed(watch.streams.derive("order", epoch))
        if not self.replacement and self.num_samples == num_samples:
            yield from torch.randperm(num_samples, generator=generator).tolist()
            return
        own, self.generator = self.generator, generator
        try:
            yield from drawn(self)
        finally:
            self.generator = own

    RandomSampler.__iter__ = in_known_order  # type: ignore[method-assign]
