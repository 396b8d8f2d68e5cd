"""The interface of every kind of input, read in this process or through batches that other processes make; and lists of batches.

An input describes each batch that is wanted (`wanted`), makes a described batch (`make`, in the process that reads), and
receives it (`finish`, in the process that trains). Whichever process makes a batch, it is the one that a DataLoader's
worker would have made, since its random numbers depend on the batch alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.utils.data._utils import pin_memory as torch_pin

from portwright.data.failures import Failure, describe, describe_death, raise_failure, too_short_error
from portwright.data.probe import Probe, Reading
from portwright.data.seeding import RandomStream, derive_seed, seed_process
from portwright.data.split import BatchSplitter, Counts, count_samples, part_bounds
from portwright.data.workers import Progress
from portwright.errors import UserError

Numbered = tuple[int, Any, Counts]  # a batch with its number in the epoch


@dataclass
class Shared:
    """What a source needs to know of its run."""

    name: str  # train_input or eval_input
    seed: int
    rank: int
    world_size: int
    notes: list[str] = field(default_factory=list)
    # Give a batch of fewer samples than ranks, whole, to every rank; only rank 0 counts its samples.
    keeps_small: bool = False

    def note(self, text: str) -> None:
        line = f"{self.name}: {text}"
        if line not in self.notes:
            self.notes.append(line)

    def counts_of_small(self, num_samples: int) -> Counts | None:
        """Counts of a batch with fewer samples than ranks; None: it is left out.

        An evaluation must count every sample, yet each rank has to take the same number of steps.
        """
        if not self.keeps_small:
            self.note_dropped(num_samples)
            return None
        return (num_samples if self.rank == 0 else 0), num_samples

    def count_replicas(self, *things: Any) -> int:
        """The number of processes that the user's sampler or data set shards over; 1: it does not shard."""
        for thing in things:
            num_replicas, rank = getattr(thing, "num_replicas", None), getattr(thing, "rank", None)
            if not (isinstance(num_replicas, int) and isinstance(rank, int) and num_replicas > 1):
                continue
            if self.world_size > 1 and (num_replicas, rank) != (self.world_size, self.rank):
                raise UserError(
                    f"{self.name}: {type(thing).__name__} shards for process {rank} of {num_replicas}, and this is "
                    f"process {self.rank} of {self.world_size}.",
                    "Leave num_replicas and rank to torch.distributed, or do without: batches are shared out anyway.",
                )
            return num_replicas
        return 1

    def note_dropped(self, num_samples: int) -> None:
        self.note(
            f"batches of fewer samples than the {self.world_size} processes are left out (one has {num_samples})."
        )

    def check_batch_size(self, batch_size: int | None) -> None:
        if batch_size is not None and batch_size < self.world_size and not self.keeps_small:
            raise UserError(
                f"{self.name}: the batch size is {batch_size} and there are {self.world_size} processes to share it.",
                "Raise the batch size, which counts the samples of all processes together, or start fewer processes.",
            )

    def no_batch_error(self, what: str, num_dropped: int = 0) -> UserError:
        if num_dropped:
            return UserError(
                f"{self.name}: every batch of {what} has fewer samples than there are processes ({self.world_size}).",
                "Make larger batches or start fewer processes.",
            )
        return UserError(
            f"{self.name}: {what} gave no batch.",
            "Look at its paths and filters: it has to give at least one.",
        )


class EndOfLane:
    """Given instead of a batch: its lane has no more batches in this epoch."""


END = EndOfLane()


class NeedsFreshInput(Exception):
    """Raised by `make` where the wanted batch was passed already: the input must be opened again to reach it."""


@dataclass(frozen=True)
class Wanted:
    """A batch that another process is to make."""

    epoch: int
    order: dict[str, Any]  # the argument of `make`, plain values and arrays
    lane: int | None = None  # batches of one lane are read in turn, by one process
    kept: Any = None  # what `finish` needs again


class Source:
    """An input that can be read from any batch of any epoch."""

    batch_size: int | None = None  # samples of a full batch, of all ranks together; None: not known
    num_batches: int | None = None  # in one epoch; None where it is not known
    num_samples_of_last: int | None = None  # in an epoch's last batch, of all ranks together
    end: int | None = None  # number of batches in an epoch, where it is certain
    knows_its_end = True  # whether `wanted` ends by itself; else when every lane has given END

    def __init__(self, shared: Shared, what: str, *sharding: Any) -> None:
        self._shared = shared
        self._what = what
        self._num_replicas = shared.count_replicas(*sharding)
        self._num_parts = shared.world_size if self._num_replicas == 1 else 1
        self._splitter: BatchSplitter | None = None
        if self._num_parts > 1:
            self._splitter = BatchSplitter(shared.name, shared.rank, shared.world_size)
        self._progress: Progress | None = None  # of worker processes

    @property
    def is_ahead(self) -> bool:
        """Whether batches are made by workers or a thread, before they are asked for."""
        return False

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        """Yields the rest of an epoch; a batch's number does not depend on the number of ranks."""
        raise NotImplementedError

    def take_part(self, epoch: int, number: int, batch: Any) -> Numbered | None:
        """This rank's part of a batch; None: it has fewer samples than ranks. A Failure in its place is raised."""
        self.check(epoch, number, batch)
        size = count_samples(batch)
        if self._splitter is None:
            local = 1 if size is None else size
            return number, batch, (local, local * self._num_replicas)
        if size is not None and size < self._num_parts:
            small = self._shared.counts_of_small(size)
            return None if small is None else (number, batch, small)
        part, local = self._splitter.split(batch, size)
        return number, part, (local, size or 0)

    def take_parts(self, epoch: int, start: int, batches: Iterable[Any]) -> Iterator[Numbered]:
        """This rank's parts of the batches of an epoch from number `start` on; an epoch that gives none is an error."""
        num_given = num_dropped = 0
        for number, batch in enumerate(batches, start):
            taken = self.take_part(epoch, number, batch)
            if taken is None:
                num_dropped += 1
            else:
                yield taken
                num_given += 1
        if not num_given and start == 0:
            raise self.no_batch_error(epoch, num_dropped)

    def no_batch_error(self, epoch: int, num_dropped: int) -> UserError:
        return self._shared.no_batch_error(self._what, num_dropped)

    def check(self, epoch: int, number: int, batch: Any) -> None:
        if type(batch) is Failure:
            raise_failure(batch, name=self._shared.name, dataset=self._what, epoch=epoch, batch=number)

    def state(self) -> dict[str, Any] | None:
        """What it takes to continue here without reading again, as JSON; None where that is not possible.

        Its key `has_ended` says whether the epoch is known to be over.
        """
        return None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Continues from what `state` gave."""

    def reread(self, epoch: int, number: int) -> Any | None:
        """Loads a batch again without moving; None where that is not possible."""
        return None

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        """Names the sample that killed a worker; None where the error is about something else."""
        found = self._progress.find(error) if self._progress is not None else None
        if found is None:
            return None
        where = self._name_death(epoch, *found)
        return UserError(
            f"{self._shared.name}: a worker of {self._what} died at {where}: {describe_death(error)}.",
            "If memory or shared memory ran out, lower num_workers, prefetch_factor or the batch size; if that "
            "sample crashes its decoder, leave it out.",
        )

    def _name_death(self, epoch: int, batch: int, place: int) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """Ends the source's workers and threads."""

    # -- batches that other processes make ---------------------------------------------------------------------------

    @property
    def lanes_have_ended(self) -> bool:
        return False

    @property
    def pins_memory(self) -> bool:
        """Whether batches are to be put into pinned memory."""
        return False

    @property
    def fingerprint(self) -> list[Any]:
        """What must be equal in the processes that make and use batches, as JSON: number of samples and the like."""
        raise NotImplementedError

    @property
    def probe(self) -> Probe | None:
        """A few samples to compare with another process's; None where reading them would move the input."""
        return None

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        raise NotImplementedError

    def begin_serving(self, worker: int, num_workers: int) -> None:
        """Called once, before this source makes batches for another process."""

    def make(self, order: dict[str, Any]) -> Any:
        """The batch, a Failure in its place, or END; NeedsFreshInput asks for an input that was just opened."""
        raise NotImplementedError

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        raise NotImplementedError


class ListSource(Source):
    """Batches in a list, or in anything that is indexed by the batch's number, in their own order."""

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
            raise self.no_batch_error(0, num_dropped=len(sizes))
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
        yield from self.take_parts(epoch, start, (self._load(epoch, number) for number in numbers))

    def no_batch_error(self, epoch: int, num_dropped: int) -> UserError:
        return self._shared.no_batch_error(f"the {self._what}", num_dropped)

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


class Channel(Protocol):
    """The way to the processes that read one input."""

    def request(
        self, wanted: Iterator[Wanted], fingerprint: list[Any], seen: Reading | None
    ) -> Generator[tuple[Wanted, Any], None, None]:
        """Yields each wanted batch with what was made for it, in the order of `wanted`."""
        ...


class RemoteSource(Source):
    """A source whose batches other processes make ahead of need, into the next epoch too."""

    def __init__(self, inner: Source, channel: Channel, shared: Shared, *, repeat: bool) -> None:
        self._inner, self._channel, self._repeat = inner, channel, repeat
        self.batch_size = inner.batch_size
        self.num_batches = inner.num_batches
        self.num_samples_of_last = inner.num_samples_of_last
        self.end = inner.end
        self.state = inner.state  # type: ignore[method-assign]
        self.load_state = inner.load_state  # type: ignore[method-assign]
        self.reread = inner.reread  # type: ignore[method-assign]
        self._incoming: Generator[tuple[Wanted, Any], None, None] | None = None
        self._held: tuple[Wanted, Any] | None = None  # the next epoch's first batch, not yet given
        self._next = (0, 0)  # epoch and number of the batch that `_incoming` gives next

    @property
    def is_ahead(self) -> bool:
        return True

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        if self._incoming is None or self._next != (epoch, start):
            self._begin(epoch, start)
        incoming = self._incoming
        assert incoming is not None
        while (each := self._take(incoming)) is not None:
            wanted, made = each
            if wanted.epoch != epoch:
                self._held = each
                break
            numbered = self._inner.finish(wanted, made)
            if numbered is not None:
                number, batch, counts = numbered
                self._next = (epoch, number + 1)
                if self._inner.pins_memory:
                    batch = torch_pin.pin_memory(batch)  # type: ignore[no-untyped-call]
                yield number, batch, counts
                if self._incoming is not incoming:
                    return  # the loader has moved to another position
            elif not self._inner.knows_its_end and self._inner.lanes_have_ended:
                self._stop()
                break
        else:
            self._stop()
        self._next = (epoch + 1, 0)

    def _take(self, incoming: Iterator[tuple[Wanted, Any]]) -> tuple[Wanted, Any] | None:
        held, self._held = self._held, None
        return next(incoming, None) if held is None else held

    def _begin(self, epoch: int, start: int) -> None:
        self._stop()
        probe = self._inner.probe
        seen = None if probe is None else probe.tell()
        self._incoming = self._channel.request(self._wanted(epoch, start), self._inner.fingerprint, seen)
        self._next = (epoch, start)

    def _wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        yield from self._inner.wanted(epoch, start)
        while self._repeat and self._inner.knows_its_end:
            epoch += 1
            yield from self._inner.wanted(epoch, 0)

    def _stop(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        self._incoming = self._held = None

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        return None

    def close(self) -> None:
        self._stop()
        self._inner.close()
