"""Batches that lie ready in a list, or in anything that is read by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portwright.data.failures import Failure, describe, raise_failure, too_short_error
from portwright.data.probe import Probe
from portwright.data.remote import Wanted
from portwright.data.seeding import RandomStream, derive_seed, seed_process
from portwright.data.source import Numbered, Shared
from portwright.data.split import Counts, count_samples, part_bounds
from portwright.errors import UserError


class ListSource:
    """A sequence of batches, in its own order."""

    is_ahead = False

    def __init__(self, batches: Any, shared: Shared) -> None:
        self._batches = batches
        self._shared = shared
        self._splitter = shared.make_splitter()
        self._what = type(batches).__name__
        self.probe = Probe(self._batches.__getitem__, len(batches))
        self.end: int | None = len(batches)
        self.num_batches: int | None = self.end
        self.num_samples_of_last: int | None = None
        self.batch_size: int | None = None
        self.batch_sizes_vary = True
        # Counted once for batches in memory; others would have to be loaded for it.
        self._counts: list[Counts] | None = None
        if not len(batches):
            raise UserError(
                f"{shared.name}: the {self._what} of batches is empty.", "It has to hold at least one batch."
            )
        if isinstance(batches, (list, tuple)):
            self._count_all()

    def _count_all(self) -> None:
        rank, world_size = self._shared.rank, self._shared.world_size
        counted = [count_samples(batch) for batch in self._batches]
        sizes = [
            world_size if size is None else size for size in counted
        ]  # uncountable ones are refused in turn
        keeps_all = world_size == 1 or self._shared.keeps_small
        given = sizes if keeps_all else [size for size in sizes if size >= world_size]
        if not given:
            raise self._shared.no_batch_error(f"the {self._what}", num_dropped=len(sizes))
        bounds = [part_bounds(size, rank, world_size) for size in sizes]
        self._counts = [(high - low, size) for (low, high), size in zip(bounds, sizes, strict=True)]
        self.num_batches = len(given)
        self.num_samples_of_last = given[-1]
        self.batch_size = max(given)
        self.batch_sizes_vary = len(set(given)) > 1

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        batches, counts = self._batches, self._counts
        stop = len(batches)
        if start > stop:
            raise too_short_error(self._shared.name, f"the {self._what}", start)
        if counts is not None and self._splitter is None:
            for number in range(start, stop):
                yield number, batches[number], counts[number]
            return
        num_given = 0
        for number in range(start, stop):
            batch = self._load(epoch, number)
            size = count_samples(batch)
            if self._splitter is None:
                local = 1 if size is None else size
                yield number, batch, (local, local)
            elif size is not None and size < self._shared.world_size:
                if (small := self._shared.counts_of_small(size)) is None:
                    continue
                yield number, batch, small
            else:
                part, local = self._splitter.split(batch, size)
                yield number, part, (local, size or 0)
            num_given += 1
        if not num_given and start == 0:
            raise self._shared.no_batch_error(f"the {self._what}", num_dropped=stop)

    def _load(self, epoch: int, number: int) -> Any:
        try:
            return self._batches[number]
        except Exception as error:
            failure = Failure("load", f"batch {number}", error, describe(error))
            raise_failure(failure, name=self._shared.name, dataset=self._what, epoch=epoch, batch=number)

    def state(self) -> dict[str, Any] | None:
        return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        pass

    def reread(self, epoch: int, number: int) -> Any | None:
        with RandomStream(self._seed_of(epoch, number), spotless=True):
            batch = self._load(epoch, number)
        return batch if self._splitter is None else self._splitter.split(batch, count_samples(batch))[0]

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        return None

    # -- batches that other processes make ---------------------------------------------------------------------------

    knows_its_end = True
    lanes_have_ended = False
    pins_memory = False

    @property
    def fingerprint(self) -> list[Any]:
        return [self._what, len(self._batches)]

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        stop = len(self._batches)
        if start > stop:
            raise too_short_error(self._shared.name, f"the {self._what}", start)
        for number in range(start, stop):
            yield Wanted(epoch, {"epoch": epoch, "number": number}, kept=number)

    def begin_serving(self, worker: int, num_workers: int) -> None:
        pass

    def make(self, order: dict[str, Any]) -> Any:
        epoch, number = order["epoch"], order["number"]
        seed_process(self._seed_of(epoch, number))
        return self._load(epoch, number)

    def _seed_of(self, epoch: int, number: int) -> int:
        return derive_seed(self._shared.seed, "list", epoch, number)

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        size = count_samples(made)
        local = 1 if size is None else size
        return wanted.kept, made, (local, local)

    def close(self) -> None:
        pass
