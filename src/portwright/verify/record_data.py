"""Hooks torch's loaders: one process, an order that depends only on epoch and length, and each batch is reported to the watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data import dataloader as torch_loaders

from portwright.patched import in_place_of
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
    code = DataLoader.__init__.__code__
    names = code.co_varnames[1 : code.co_argcount]

    @in_place_of(DataLoader, "__init__")
    def in_one_process(made: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given.update({name: value for name, value in _FORCED.items() if name in given})
        given.pop("multiprocessing_context", None)
        made(self, **given)


def _hook_iterator(watch: Watch, loading: Loading, convert: Callable[[Any], Any] | None) -> None:
    kind = torch_loaders._SingleProcessDataLoaderIter

    def begin(self: Any, loader: Any) -> None:
        self._recorded_epoch, self._recorded_batch = loading.begin(loader.dataset), 0
        self.recorded_pass = Pass(loader, seeded=torch.get_rng_state().numpy().tobytes())

    @in_place_of(kind, "__init__")
    def recorded_init(made: Any, self: Any, loader: Any, *args: Any) -> None:
        begin(self, loader)
        loading.epoch = self._recorded_epoch
        with watch.streams.own("loader", self._recorded_epoch):
            made(self, loader, *args)

    @in_place_of(kind, "_reset")
    def recorded_reset(reset: Any, self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader)
        with watch.streams.own("loader", self._recorded_epoch):
            reset(self, loader, *args, **kwargs)

    @in_place_of(kind, "_next_data")
    def recorded_fetch(fetch: Any, self: Any) -> Any:
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


def _hook_shuffling(watch: Watch, loading: Loading) -> None:
    """Makes every way to shuffle give the same order for an epoch and a length, since a port may use another one."""
    randperm, num_permuted = torch.randperm, Counter[int]()

    def permute(num_samples: int, epoch: int) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(watch.streams.derive("order", epoch))
        return randperm(num_samples, generator=generator, device="cpu")

    def epoch_of(dataset: Any) -> int:
        return loading.epoch if loading.epoch is not None else loading.begin(dataset)

    @in_place_of(RandomSampler, "__iter__")
    def in_random_order(drawn: Any, self: Any) -> Iterator[int]:
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

    @in_place_of(SubsetRandomSampler, "__iter__")
    def in_subset_order(drawn: Any, self: Any) -> Iterator[int]:
        for place in permute(len(self.indices), epoch_of(self)).tolist():
            yield self.indices[place]

    @in_place_of(DistributedSampler, "__iter__")
    def in_distributed_order(drawn: Any, self: Any) -> Any:
        if self.num_replicas != 1 or not self.shuffle:
            return drawn(self)
        return iter(permute(len(self.dataset), epoch_of(self.dataset)).tolist())

    @in_place_of(torch, "randperm")
    def permuted_by_hand(randperm: Any, n: int, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if generator is not None or args or watch.streams.is_own or kwargs.get("out") is not None:
            return randperm(n, *args, generator=generator, **kwargs)
        num_permuted[int(n)] += 1
        order = permute(int(n), num_permuted[int(n)] - 1)
        return order.to(**{key: kwargs[key] for key in ("dtype", "device") if kwargs.get(key) is not None})
