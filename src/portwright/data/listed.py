"""Batches in a list, or in anything that is indexed by the batch's number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portwright.data.failures import Failure, describe, raise_failure, too_short_error
from portwright.data.probe import Probe
from portwright.data.seeding import RandomStream, derive_seed, seed_process
from portwright.data.source import Numbered, Shared, Source, Wanted
from portwright.data.split import Counts, count_samples, part_bounds
from portwright.errors import UserError


class ListSource(Source):
    """A sequence of batches, in its own order."""

    def __init__(self, batches: Any, shared: Shared) -> None:
        super().__init__(shared, type(batches).__name__)
        self._batches = batches
        self._probe = Probe(self._batches.__getitem__, len(batches))
        self.num_batches = self.end = len(batches)
        # Only batches in memory are counted beforehand: others would have to be loaded.
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
        # Batches without a size are refused when they are read.
        sizes = [world_size if size is None else size for size in counted]
        keeps_all = world_size == 1 or self._shared.keeps_small
        given = sizes if keeps_all else [size for size in sizes if size >= world_size]
        if not given:
            raise self._shared.no_batch_error(f"the {self._what}", num_dropped=len(sizes))
        bounds = [part_bounds(size, rank, world_size) for size in sizes]
        self._counts = [(high - low, size) for (low, high), size in zip(bounds, sizes, strict=True)]
        self.num_batches = len(given)
        self.num_samples_of_last = given[-1]
        self.batch_size = max(given)

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        batches, counts = self._batches, self._counts
        numbers = self._numbers_from(start)
        if counts is not None and self._splitter is None:
            for number in numbers:
                yield number, batches[number], counts[number]
            return
        num_given = 0
        for number in numbers:
            taken = self.take_part(epoch, number, self._load(epoch, number))
            if taken is not None:
                num_given += 1
                yield taken
        if not num_given and start == 0:
            raise self._shared.no_batch_error(f"the {self._what}", num_dropped=len(batches))

    def _numbers_from(self, start: int) -> range:
        if start > len(self._batches):
            raise too_short_error(self._shared.name, f"the {self._what}", start)
        return range(start, len(self._batches))

    def _load(self, epoch: int, number: int) -> Any:
        try:
            return self._batches[number]
        except Exception as error:
            failure = Failure("load", f"batch {number}", error, describe(error))
            raise_failure(failure, name=self._shared.name, dataset=self._what, epoch=epoch, batch=number)

    def reread(self, epoch: int, number: int) -> Any | None:
        with RandomStream(self._seed_of(epoch, number), spotless=True):
            batch = self._load(epoch, number)
        return batch if self._splitter is None else self._splitter.split(batch, count_samples(batch))[0]

    @property
    def probe(self) -> Probe | None:
        return self._probe

    @property
    def fingerprint(self) -> list[Any]:
        return [self._what, len(self._batches)]

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        for number in self._numbers_from(start):
            yield Wanted(epoch, {"epoch": epoch, "number": number}, kept=number)

    def make(self, order: dict[str, Any]) -> Any:
        epoch, number = order["epoch"], order["number"]
        seed_process(self._seed_of(epoch, number))
        return self._load(epoch, number)

    def _seed_of(self, epoch: int, number: int) -> int:
        return derive_seed(self._shared.seed, "list", epoch, number)

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        return self.take_part(wanted.epoch, wanted.kept, made)
