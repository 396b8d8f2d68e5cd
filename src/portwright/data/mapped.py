"""Data sets that are read by index, through a DataLoader's sampler, workers and collate_fn."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from portwright.data.ahead import NUM_BATCHES_A_STRETCH, Pace, make_ahead
from portwright.data.failures import (
    Failure,
    describe,
    describe_death,
    name_cause,
    name_of,
    name_sample,
    name_samples,
    raise_failure,
    too_short_error,
)
from portwright.data.fetch import Fetch, GatherFetch, make_fetch
from portwright.data.order import FixedOrder, make_order
from portwright.data.probe import Probe
from portwright.data.remote import Wanted
from portwright.data.seeding import RandomStream, derive_seed, seed_process
from portwright.data.shards import Counted, Shards
from portwright.data.source import Numbered, Shared
from portwright.data.split import Counts, count_samples
from portwright.data.workers import ActingWorker, Progress, Task, WorkerFetch, copy_loader, pin, pins
from portwright.errors import PortwrightError, UserError


class MapSource:
    """The batches of a map-style DataLoader, in an order that depends on seed and epoch alone."""

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._loader = loader
        self._shared = shared
        self._what = name_of(loader.dataset)
        batch_sampler = loader.batch_sampler
        samplers = (loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        self._num_replicas = shared.count_replicas(*samplers)
        self._num_parts = shared.world_size if self._num_replicas == 1 else 1
        self._fetch = make_fetch(loader, shared.seed)
        self._order = make_order(
            loader,
            name=shared.name,
            seed=shared.seed,
            # A tensor would go to a worker by shared memory, a file for each.
            kind="list" if self._fetch.takes == "tensor" and loader.num_workers else self._fetch.takes,
        )
        self._splitter = shared.make_splitter() if self._num_parts > 1 else None
        self._shards = Shards(self._order, shared, self._num_parts, self._num_replicas, self._what)
        self._pace = Pace() if isinstance(self._fetch, GatherFetch) else None
        self._parallel: DataLoader[Any] | None = None
        self._progress: Progress | None = None
        self._generator = torch.Generator()
        self._acting: AbstractContextManager[None] = nullcontext()
        self._probe: Probe | None = None
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
        self.batch_size: int | None = None if order.batch_size is None else order.batch_size * replicas
        self.end: int | None = order.num_batches if order.is_exact else None
        self.num_batches: int | None = order.num_batches
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
        self.num_samples_of_last: int | None = None if last is None else last * replicas
        one_size = last is not None and (last == order.batch_size or self.num_batches == 1)
        self.batch_sizes_vary = not one_size

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

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        if self.end is not None and start > self.end:
            raise too_short_error(self._shared.name, self._what, start)
        pinned = pins(self._loader)
        if self._loader.num_workers == 0 and (not pinned or self._pace is not None):
            yield from self._read_here(epoch, start, pinned)
            return
        in_flight = self._shards.aim(epoch, start)
        if self._loader.num_workers == 0:
            for batch in pin(self._in_turn()):
                if finished := self._finish(*in_flight.popleft(), batch):
                    yield finished
            return
        with closing(self._in_workers(epoch)) as batches:
            for batch in batches:
                if finished := self._finish(*in_flight.popleft(), batch):
                    yield finished

    def _read_here(self, epoch: int, start: int, pinned: bool) -> Iterator[Numbered]:
        """Batches made in this process, and ahead of need where a data set gathers them and that pays."""
        fetch, pace = self._fetch, self._pace
        counted = self._shards.read(epoch, start)
        if pinned:
            fetch = _pinning(fetch)
        while pace is not None and not pace.draws:
            yield from self._try_out(counted, fetch, pace)
            stretch = islice(counted, NUM_BATCHES_A_STRETCH)
            num_made = 0
            if pace.pays:
                with closing(make_ahead(stretch, lambda each: fetch(each[0].indices, epoch))) as made:
                    for (task, counts), batch in made:
                        num_made += 1
                        if finished := self._finish(task, counts, batch):
                            yield finished
            else:
                for task, counts in stretch:
                    num_made += 1
                    if finished := self._finish(task, counts, fetch(task.indices, epoch)):
                        yield finished
            if num_made < NUM_BATCHES_A_STRETCH:
                return
            pace.ask_again()
        for task, counts in counted:
            if finished := self._finish(task, counts, fetch(task.indices, epoch)):
                yield finished

    def _try_out(self, counted: Iterator[Counted], fetch: Any, pace: Pace) -> Iterator[Numbered]:
        while not pace.is_known and (following := next(counted, None)) is not None:
            task, counts = following
            batch = pace.watch(lambda task=task: fetch(task.indices, task.epoch))  # type: ignore[misc]
            if pace.draws:
                self._shared.note(
                    f"{self._what} draws from the process's random numbers: a sample's depend on what was drawn "
                    "before, and batches are not made ahead. Draw from the draws that gather and transform get."
                )
            if finished := self._finish(task, counts, batch):
                yield finished

    def _finish(self, task: Task, counts: Counts | None, batch: Any) -> Numbered | None:
        if type(batch) is Failure:
            raise_failure(
                batch, name=self._shared.name, dataset=self._what, epoch=task.epoch, batch=task.number
            )
        if counts is not None:
            return task.number, batch, counts
        # One index was a whole batch, which every rank has loaded.
        size = count_samples(batch)
        if self._splitter is None:
            local = 1 if size is None else size
            return task.number, batch, (local, local * self._num_replicas)
        if size is not None and size < self._num_parts:
            small = self._shared.counts_of_small(size)
            return None if small is None else (task.number, batch, small)
        part, local = self._splitter.split(batch, size)
        return task.number, part, (local, size or 0)

    def _in_turn(self) -> Iterator[Any]:
        for task in self._shards:
            yield self._fetch(task.indices, task.epoch)

    def _in_workers(self, epoch: int) -> Generator[Any, None, None]:
        try:
            loader = self._start() if self._parallel is None else self._parallel
            # Workers that outlive an epoch are seeded once, so that they are so after a resume too.
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

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        found = self._progress.find(error) if self._progress is not None else None
        if found is None:
            return None
        number, place = found
        where = f"batch {number}"
        for task, _ in self._shards.in_flight:
            if task.number == number:
                where = f"{self._name_place(task.indices, place)} (epoch {task.epoch}, batch {number})"
        return UserError(
            f"{self._shared.name}: a worker of {self._what} died at {where}: {describe_death(error)}.",
            "If memory or shared memory ran out, lower num_workers, prefetch_factor or the batch size; if that "
            "sample crashes its decoder, leave it out.",
        )

    def _name_place(self, indices: Any, place: int) -> str:
        if not self._order.is_batched:
            return name_sample(self._loader.dataset, indices)
        return name_samples(indices) if place < 0 else name_sample(self._loader.dataset, indices[place])

    def _workers_error(self, error: Exception, epoch: int) -> UserError:
        where = f"epoch {epoch}"
        if self._shards.in_flight:
            task = self._shards.in_flight[0][0]
            place = -1 if self._progress is None else self._progress.place_in(task.number)
            where = f"at {self._name_place(task.indices, place)}, {where}, batch {task.number}"
        return UserError(
            f"{self._shared.name}: the workers of {self._what} failed ({where}): {describe(error)}",
            "Set num_workers to 0 to see whether the data or the processes are at fault.",
        )

    def state(self) -> dict[str, Any] | None:
        return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        pass

    def reread(self, epoch: int, number: int) -> Any | None:
        if not self._order.is_repeatable:
            return None
        for task, counts in self._shards.read(epoch, number):
            seed = derive_seed(self._shared.seed, epoch, task.number, task.offset)  # as in a worker
            with RandomStream(seed, spotless=True):
                batch = self._fetch(task.indices, epoch)
            finished = self._finish(task, counts, batch)
            return None if finished is None else finished[1]
        return None

    # -- batches that other processes make ---------------------------------------------------------------------------

    knows_its_end = True
    lanes_have_ended = False

    @property
    def pins_memory(self) -> bool:
        return pins(self._loader)

    @property
    def fingerprint(self) -> list[Any]:
        return [self._what, self._count_samples()]

    @property
    def probe(self) -> Probe | None:
        # What worker_init_fn makes of a data set is seen in workers alone, and it may not be called where the training is.
        if self._probe is None and self._loader.worker_init_fn is None:
            self._probe = Probe(self._read_alone, self._count_samples() or 0)
        return self._probe

    def _read_alone(self, index: int) -> Any:
        return self._fetch([index] if self._order.is_batched else index, 0)

    def _count_samples(self) -> int | None:
        try:
            return len(self._loader.dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        if self.end is not None and start > self.end:
            raise too_short_error(self._shared.name, self._what, start)
        for task, counts in self._shards.read(epoch, start):
            order = {"task": [task.epoch, task.number, task.offset], "indices": task.indices}
            yield Wanted(epoch, order, kept=(task, counts))

    def begin_serving(self, worker: int, num_workers: int) -> None:
        if self._loader.num_workers > 0:
            self._acting = ActingWorker(self._loader, worker, num_workers)

    def make(self, order: dict[str, Any]) -> Any:
        epoch, number, offset = order["task"]
        task = Task(epoch, number, offset, order["indices"])
        seed_process(derive_seed(self._shared.seed, task.epoch, task.number, task.offset))
        with self._acting:
            return self._fetch(task.indices, task.epoch)

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        task, counts = wanted.kept
        return self._finish(task, counts, made)

    def close(self) -> None:
        self._parallel = None
        self._shards.in_flight.clear()


def _pinning(fetch: Fetch) -> Any:
    def fetch_pinned(indices: Any, epoch: int) -> Any:
        batch = fetch(indices, epoch)
        return batch if type(batch) is Failure else {name: each.pin_memory() for name, each in batch.items()}

    return fetch_pinned
