"""The code that runs in a DataLoader's worker processes, and its link to the main process."""

from __future__ import annotations

import multiprocessing
import os
import random
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from portwright.data.failures import Failure, dead_worker_pids, describe, make_portable
from portwright.data.fetch import Fetch
from portwright.data.seeding import derive_seed, seed_process
from portwright.data.split import Counts
from portwright.job.signals import shield_worker

_CELLS_PER_WORKER = 3  # its process id, its current batch, its current sample


class Task(NamedTuple):
    """A batch to make; `offset` is where this rank's part begins in the global batch."""

    epoch: int
    number: int
    offset: int
    indices: Any
    counts: Counts | None  # None: one index is a whole batch, whose samples are counted once it is loaded


class Progress:
    """The sample that each worker is reading, in shared memory, since a killed worker cannot report it."""

    def __init__(self, num_workers: int) -> None:
        self._cells = multiprocessing.RawArray("q", _CELLS_PER_WORKER * num_workers)

    def begin(self, worker: int, batch: int) -> None:
        at = _CELLS_PER_WORKER * worker
        self._cells[at], self._cells[at + 1], self._cells[at + 2] = os.getpid(), batch, -1

    def mark(self, worker: int, sample: int) -> None:
        self._cells[_CELLS_PER_WORKER * worker + 2] = sample

    def place_in(self, batch: int) -> int:
        """The place in a batch that some worker is reading, or -1."""
        for at in range(0, len(self._cells), _CELLS_PER_WORKER):
            if self._cells[at] and self._cells[at + 1] == batch:
                return int(self._cells[at + 2])
        return -1

    def find(self, error: BaseException) -> tuple[int, int] | None:
        """The batch and the place in it (-1: unknown) at which the worker died that torch's error names."""
        dead = dead_worker_pids(error)
        for at in range(0, len(self._cells), _CELLS_PER_WORKER):
            if self._cells[at] in dead:
                return int(self._cells[at + 1]), int(self._cells[at + 2])
        return None


class WorkerFetch(Dataset[Any]):
    """Makes batches inside a worker, with random numbers that depend only on the batch."""

    def __init__(self, fetch: Fetch, seed: int, progress: Progress) -> None:
        self.fetch = fetch
        self.init_failure: Failure | None = None
        self._seed = seed
        self._progress = progress

    @property
    def inner(self) -> Any:
        return self.fetch.dataset

    def __getitem__(self, task: Task) -> Any:
        if self.init_failure is not None:
            return self.init_failure
        info = get_worker_info()
        assert info is not None
        worker = info.id
        self._progress.begin(worker, task.number)
        seed_process(derive_seed(self._seed, task.epoch, task.number, task.offset))
        batch = self.fetch(task.indices, task.epoch, lambda sample: self._progress.mark(worker, sample))
        return make_portable(batch) if type(batch) is Failure else batch


class StreamBatches(IterableDataset[Any]):
    """Batches of samples from an iterable, as DataLoader makes them, in the main process or in a worker.

    `batch_size` None: what the iterable gives is a batch already.
    """

    def __init__(
        self,
        inner: Any,
        batch_size: int | None,
        drop_last: bool,
        collate_fn: Callable[[Any], Any],
        seed: int,
        progress: Progress | None,
    ) -> None:
        self.inner = inner
        self.epoch = 0
        self.has_ended = False  # whether the iterable is known to be exhausted
        self.init_failure: Failure | None = None
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate_fn = collate_fn
        self._seed = seed
        self._progress = progress

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or self._progress is None:
            yield from self._batches(None)
            return
        if self.init_failure is not None:
            yield self.init_failure
            return
        seed_process(derive_seed(self._seed, "stream", self.epoch, info.id))
        for batch in self._batches(info.id):
            yield make_portable(batch) if type(batch) is Failure else batch

    def _batches(self, worker: int | None) -> Iterator[Any]:
        self.has_ended = False
        who = "" if worker is None else f" of worker {worker}"
        iterator: Iterator[Any] | None = None
        stride = self._batch_size or 1
        num_read = num_batches = 0
        while not self.has_ended:
            if worker is not None and self._progress is not None:
                self._progress.begin(worker, num_batches)
                self._progress.mark(worker, num_read)
            samples: list[Any] = []
            try:
                if iterator is None:
                    iterator = iter(self.inner)
                for sample in islice(iterator, stride):
                    samples.append(sample)
                    if worker is not None and self._progress is not None:
                        self._progress.mark(worker, num_read + len(samples))
            except Exception as error:
                kind = "batch" if self._batch_size is None else "sample"
                where = f"{kind} {num_read + len(samples)}{who}, counted from 0 in this epoch"
                yield Failure("load", where, error, describe(error))
                return
            self.has_ended = len(samples) < stride
            if not samples or (self.has_ended and self._drop_last):
                return
            try:
                batch = self._collate_fn(samples[0] if self._batch_size is None else samples)
            except Exception as error:
                where = f"the batch of samples {num_read} to {num_read + len(samples) - 1}{who}"
                yield Failure("collate", where, error, describe(error))
                return
            num_read += len(samples)
            num_batches += 1
            yield batch


def begin_worker(worker_init_fn: Callable[[int], Any] | None, worker: int) -> None:
    """Runs the user's worker_init_fn in a worker, where it sees the user's data set and not our wrapper."""
    shield_worker()
    info: Any = get_worker_info()
    wrapper: WorkerFetch | StreamBatches = info.dataset
    object.__setattr__(info, "dataset", wrapper.inner)  # torch's own __setattr__ refuses any change
    if worker_init_fn is None:
        return
    try:
        worker_init_fn(worker)
    except Exception as error:
        failure = Failure("worker_init_fn", f"worker {worker}", error, describe(error))
        wrapper.init_failure = make_portable(failure)


def begin_lane(worker_init_fn: Callable[[int], Any] | None, lane: int, num_lanes: int, _: int) -> None:
    """As begin_worker, in the only worker of a loader; the user's code sees worker `lane` of `num_lanes`."""
    info: Any = get_worker_info()
    seed = info.seed + lane
    for name, value in (("id", lane), ("num_workers", num_lanes), ("seed", seed)):
        object.__setattr__(info, name, value)
    torch.manual_seed(seed)
    random.seed(seed)
    begin_worker(worker_init_fn, lane)


class ActingWorker:
    """Inside `with`, user code sees this process as a worker of the loader: get_worker_info answers, worker_init_fn was called.

    Outside it must not: another input of this process may be read as in the main process, and would be sharded.
    """

    def __init__(self, loader: DataLoader[Any], worker: int, num_workers: int) -> None:
        self._info = torch_worker.WorkerInfo(
            id=worker, num_workers=num_workers, seed=torch.initial_seed(), dataset=loader.dataset
        )
        if loader.worker_init_fn is not None:
            with self:
                loader.worker_init_fn(worker)

    def __enter__(self) -> None:
        self._former, torch_worker._worker_info = torch_worker._worker_info, self._info

    def __exit__(self, *_: object) -> None:
        torch_worker._worker_info = self._former


def as_is(batch: Any) -> Any:
    return batch


def copy_loader(
    loader: DataLoader[Any],
    dataset: Dataset[Any],
    sampler: Any,
    generator: torch.Generator,
    lane: int | None = None,
) -> DataLoader[Any]:
    """Makes a DataLoader with another one's options and a data set that gives whole batches.

    Two options are not copied: in_order=False, which cannot be resumed, and pin_memory where nothing can use it. With
    `lane` the copy has one worker, which gives the batches of that worker of the original.
    """
    options: dict[str, Any] = {}
    if loader.num_workers > 0:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["worker_init_fn"] = partial(begin_worker, loader.worker_init_fn)
        options["timeout"] = loader.timeout
        # An iterable's state in a persistent worker could not be restored.
        options["persistent_workers"] = loader.persistent_workers and sampler is not None
    if lane is not None:
        options["worker_init_fn"] = partial(begin_lane, loader.worker_init_fn, lane, loader.num_workers)
    with warnings.catch_warnings():
        # torch has warned when the user made the original.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=sampler,
            collate_fn=as_is,
            num_workers=loader.num_workers if lane is None else 1,
            pin_memory=lane is None and pins(loader),
            generator=generator,
            **options,
        )


class _Given(IterableDataset[Any]):
    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches


def pin(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """Yields the same batches, copied to pinned memory one at a time in this process."""
    generator = torch.Generator()
    yield from DataLoader(
        _Given(batches), batch_size=None, collate_fn=as_is, pin_memory=True, generator=generator
    )


def pins(loader: DataLoader[Any]) -> bool:
    """Whether to put batches into pinned memory: the user asked for it, and this machine has a use for it."""
    if not loader.pin_memory:
        return False
    if hasattr(torch, "accelerator"):
        return bool(torch.accelerator.is_available())
    return torch.cuda.is_available()
