"""Data sets that are read by index, through a DataLoader's sampler, workers and collate_fn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from portwright.data.ahead import NUM_BATCHES_A_STRETCH, Pace, make_ahead
from portwright.data.failures import (
    Failure,
    describe,
    name_cause,
    name_of,
    name_sample,
    name_samples,
    too_short_error,
)
from portwright.data.fetch import GatherFetch, make_fetch
from portwright.data.order import FixedOrder, Order, make_order
from portwright.data.probe import Probe
from portwright.data.seeding import RandomStream, derive_seed, seed_process
from portwright.data.source import Numbered, Shared, Source, Wanted
from portwright.data.split import Counts, part_bounds
from portwright.data.workers import ActingWorker, Progress, Task, WorkerFetch, copy_loader, pin, pins
from portwright.errors import PortwrightError, UserError


class Shards:
    """Splits an Order's batches among ranks; as a DataLoader's sampler it remembers the tasks it gave."""

    def __init__(self, order: Order, shared: Shared, num_parts: int, num_replicas: int, what: str) -> None:
        self._order = order
        self._shared = shared
        self._num_parts = num_parts
        self._num_replicas = num_replicas
        self._what = what
        self._epoch = self._start = 0
        self.in_flight: deque[Task] = deque()  # given to workers whose results have not been taken

    def read(self, epoch: int, start: int) -> Iterator[Task]:
        num_given = num_dropped = 0
        for number, indices in self._order.batches(epoch, start):
            counts: Counts | None
            low = 0
            if not (self._order.is_batched or isinstance(indices, list)):
                counts = None
            elif self._num_parts == 1:
                counts = len(indices), len(indices) * self._num_replicas
            elif (size := len(indices)) >= self._num_parts:
                low, high = part_bounds(size, self._shared.rank, self._num_parts)
                indices, counts = indices[low:high], (high - low, size)
            elif (counts := self._shared.counts_of_small(size)) is None:
                num_dropped += 1
                continue
            yield Task(epoch, number, low, indices, counts)
            num_given += 1
        if not num_given and start == 0:
            raise self._shared.no_batch_error(f"the sampler of {self._what}", num_dropped)

    def aim(self, epoch: int, start: int) -> deque[Task]:
        """Sets where the next iteration starts, and gives the queue of its tasks."""
        self._epoch, self._start = epoch, start
        self.in_flight = deque()
        return self.in_flight

    def __iter__(self) -> Iterator[Task]:
        in_flight = self.in_flight
        for task in self.read(self._epoch, self._start):
            in_flight.append(task)
            yield task


class MapSource(Source):
    """The batches of a map-style DataLoader, in an order that depends on seed and epoch alone."""

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._loader = loader
        batch_sampler = loader.batch_sampler
        samplers = (loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        super().__init__(shared, name_of(loader.dataset), *samplers)
        self._fetch = make_fetch(loader, shared.seed)
        self._order = make_order(
            loader,
            name=shared.name,
            seed=shared.seed,
            # Each tensor sent to a worker would take a file in shared memory.
            kind="list" if self._fetch.takes == "tensor" and loader.num_workers else self._fetch.takes,
        )
        self._shards = Shards(self._order, shared, self._num_parts, self._num_replicas, self._what)
        self._pace = Pace() if isinstance(self._fetch, GatherFetch) else None
        self._parallel: DataLoader[Any] | None = None
        self._generator = torch.Generator()
        self._probe: Probe | None = None
        self._acting: AbstractContextManager[None] = nullcontext()
        if getattr(loader, "in_order", True) is False:
            shared.note("in_order=False is not kept: batches out of order could not be resumed.")
        self._measure()

    @property
    def is_ahead(self) -> bool:
        return self._loader.num_workers > 0 or (self._pace is not None and self._pace.pays)

    def _measure(self) -> None:
        order, num_parts = self._order, self._num_parts
        if order.num_batches == 0:
            raise self._empty_error()
        if num_parts > 1:
            self._shared.check_batch_size(order.batch_size)
        small = order.last_size if order.last_size is not None and order.last_size < num_parts else None
        if small is not None and not self._shared.keeps_small and isinstance(order, FixedOrder):
            if order.num_batches == 1:
                raise self._shared.no_batch_error(self._what, num_dropped=1)
            order.join_last()
            self._shared.note(
                f"an epoch's last batch has {small} of {order.batch_size} samples, fewer than the {num_parts} processes: they "
                "come with the batch before."
            )
        replicas = self._num_replicas
        self.batch_size = None if order.batch_size is None else order.batch_size * replicas
        self.end = order.num_batches if order.is_exact else None
        self.num_batches = order.num_batches
        last = order.last_size
        if (
            self.num_batches is not None
            and last is not None
            and last < num_parts
            and not self._shared.keeps_small
        ):
            self.num_batches -= 1
            self._shared.note_dropped(last)
            last = order.batch_size
            if self.num_batches == 0:
                raise self._shared.no_batch_error(self._what, num_dropped=1)
        self.num_samples_of_last = None if last is None else last * replicas

    def _empty_error(self) -> UserError:
        num_samples = self._count_samples()
        if num_samples == 0:
            return UserError(
                f"{self._shared.name}: data set {self._what} is empty.",
                "Look at its paths, splits and filters.",
            )
        if self._order.batch_size is not None and getattr(self._loader.batch_sampler, "drop_last", False):
            return UserError(
                f"{self._shared.name}: {self._what} has {num_samples} samples, too few for one batch of "
                f"{self._order.batch_size}, and drop_last leaves out what does not fill one.",
                "Lower the batch size or set drop_last to False.",
            )
        return UserError(
            f"{self._shared.name}: the sampler of {self._what} gives no index.",
            "It has to give at least one.",
        )

    def _check_start(self, start: int) -> None:
        if self.end is not None and start > self.end:
            raise too_short_error(self._shared.name, self._what, start)

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        self._check_start(start)
        pinned = pins(self._loader)
        if self._loader.num_workers == 0 and (not pinned or self._pace is not None):
            yield from self._read_here(epoch, start, pinned)
            return
        in_flight = self._shards.aim(epoch, start)
        if self._loader.num_workers:
            made = self._in_workers(epoch)
        else:
            made = pin(self._fetch(task.indices, epoch) for task in self._shards)
        with closing(made) as batches:
            for batch in batches:
                if finished := self._finish(in_flight.popleft(), batch):
                    yield finished

    def _read_here(self, epoch: int, start: int, pinned: bool) -> Iterator[Numbered]:
        """Makes batches in this process; ahead of need where the data set gathers them and a thread saves time."""
        fetch, pace = self._fetch, self._pace
        tasks = self._shards.read(epoch, start)

        def make(task: Task) -> Any:
            batch = fetch(task.indices, epoch)
            if not pinned or type(batch) is Failure:
                return batch
            return {name: each.pin_memory() for name, each in batch.items()}

        while pace is not None and not pace.draws:
            yield from self._time_first_batches(tasks, make, pace)
            stretch = islice(tasks, NUM_BATCHES_A_STRETCH)
            num_made = 0
            made: Generator[tuple[Task, Any], None, None]
            made = make_ahead(stretch, make) if pace.pays else ((task, make(task)) for task in stretch)
            with closing(made) as batches:
                for task, batch in batches:
                    num_made += 1
                    if finished := self._finish(task, batch):
                        yield finished
            if num_made < NUM_BATCHES_A_STRETCH:
                return
            pace.ask_again()
        for task in tasks:
            if finished := self._finish(task, make(task)):
                yield finished

    def _time_first_batches(
        self, tasks: Iterator[Task], make: Callable[[Task], Any], pace: Pace
    ) -> Iterator[Numbered]:
        while not pace.is_known and (task := next(tasks, None)) is not None:
            batch = pace.watch(partial(make, task))
            if pace.draws:
                self._shared.note(
                    f"{self._what} draws from the process's random numbers: a sample's depend on what was drawn "
                    "before, and batches are not made ahead. Draw from the draws that gather and transform get."
                )
            if finished := self._finish(task, batch):
                yield finished

    def _finish(self, task: Task, batch: Any) -> Numbered | None:
        if task.counts is None:  # every rank has loaded the whole batch that one index names
            return self.take_part(task.epoch, task.number, batch)
        self.check(task.epoch, task.number, batch)
        return task.number, batch, task.counts

    def _in_workers(self, epoch: int) -> Generator[Any, None, None]:
        try:
            loader = self._start() if self._parallel is None else self._parallel
            # Workers that live for several epochs are seeded once only, and must get the same seed after a resume.
            self._generator.manual_seed(
                derive_seed(self._shared.seed, 0 if loader.persistent_workers else epoch)
            )
            yield from loader
        except PortwrightError:
            raise
        except Exception as error:
            self._parallel = None
            # No local name for what is found: frame and error would hold each other, and the workers with them.
            raise name_cause(error, epoch, self.explain, self._workers_error)  # noqa: B904

    def _start(self) -> DataLoader[Any]:
        self._progress = Progress(self._loader.num_workers)
        dataset = WorkerFetch(self._fetch, self._shared.seed, self._progress)
        self._parallel = copy_loader(self._loader, dataset, self._shards, self._generator)
        return self._parallel

    def _name_death(self, epoch: int, batch: int, place: int) -> str:
        for task in self._shards.in_flight:
            if task.number == batch:
                return f"{self._name_place(task.indices, place)} (epoch {task.epoch}, batch {batch})"
        return f"batch {batch}"

    def _name_place(self, indices: Any, place: int) -> str:
        if not self._order.is_batched:
            return name_sample(self._loader.dataset, indices)
        return name_samples(indices) if place < 0 else name_sample(self._loader.dataset, indices[place])

    def _workers_error(self, error: Exception, epoch: int) -> UserError:
        where = f"epoch {epoch}"
        if self._shards.in_flight:
            task = self._shards.in_flight[0]
            place = -1 if self._progress is None else self._progress.place_in(task.number)
            where = f"at {self._name_place(task.indices, place)}, {where}, batch {task.number}"
        return UserError(
            f"{self._shared.name}: the workers of {self._what} failed ({where}): {describe(error)}",
            "Set num_workers to 0 to see whether the data or the processes are at fault.",
        )

    def reread(self, epoch: int, number: int) -> Any | None:
        if not self._order.is_repeatable:
            return None
        for task in self._shards.read(epoch, number):
            seed = derive_seed(self._shared.seed, epoch, task.number, task.offset)  # as in a worker
            with RandomStream(seed, spotless=True):
                batch = self._fetch(task.indices, epoch)
            finished = self._finish(task, batch)
            return None if finished is None else finished[1]
        return None

    # -- batches that other processes make ---------------------------------------------------------------------------

    @property
    def pins_memory(self) -> bool:
        return pins(self._loader)

    @property
    def fingerprint(self) -> list[Any]:
        return [self._what, self._count_samples()]

    @property
    def probe(self) -> Probe | None:
        # worker_init_fn may change the data set, but only in workers: it must not run in the training process.
        if self._probe is None and self._loader.worker_init_fn is None:
            is_batched = self._order.is_batched
            self._probe = Probe(
                lambda index: self._fetch([index] if is_batched else index, 0), self._count_samples() or 0
            )
        return self._probe

    def _count_samples(self) -> int | None:
        try:
            return len(self._loader.dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        self._check_start(start)
        for task in self._shards.read(epoch, start):
            order = {"task": [task.epoch, task.number, task.offset], "indices": task.indices}
            yield Wanted(epoch, order, kept=task)

    def begin_serving(self, worker: int, num_workers: int) -> None:
        if self._loader.num_workers > 0:
            self._acting = ActingWorker(self._loader, worker, num_workers)

    def make(self, order: dict[str, Any]) -> Any:
        epoch, number, offset = order["task"]
        seed_process(derive_seed(self._shared.seed, epoch, number, offset))
        with self._acting:
            return self._fetch(order["indices"], epoch)

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        return self._finish(wanted.kept, made)

    def close(self) -> None:
        self._parallel = None
        self._shards.in_flight.clear()
