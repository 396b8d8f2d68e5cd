"""Batches that other processes make: what is asked of them, and how what they send becomes a source's own.

A source that can be served so says what it wants of each batch (`wanted`), makes one that is wanted (`make`, in
the process that reads), and takes it home (`finish`, in the process that trains). Whoever makes it, a batch is the one that
a DataLoader's worker would have made, since its random numbers depend on the batch alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data._utils import pin_memory as torch_pin

from portwright.data.probe import Look, Probe
from portwright.data.source import Numbered, Shared, Source
from portwright.errors import UserError


class EndOfLane:
    """Made in a batch's place: its lane has no more in this epoch."""


END = EndOfLane()


class NeedsAnew(Exception):
    """Raised by `make`: what is wanted lies behind, and only an input that was just opened can be read from its start."""


@dataclass(frozen=True)
class Wanted:
    """One batch to be made elsewhere."""

    epoch: int
    order: dict[str, Any]  # plain values and arrays, for `make`
    lane: int | None = None  # batches of one lane are read in turn, by one process
    kept: Any = None  # for `finish`


class Servable(Source, Protocol):
    """A source whose batches may be made in another process."""

    @property
    def knows_its_end(self) -> bool:
        """Whether `wanted` ends by itself; else it goes on until `finish` has seen the end of every lane."""
        ...

    @property
    def lanes_have_ended(self) -> bool: ...

    @property
    def pins_memory(self) -> bool:
        """Whether batches are to be put into pinned memory."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """What must be alike where batches are made and where they are used, as JSON: number of samples and the like."""
        ...

    @property
    def probe(self) -> Probe | None:
        """A few samples to compare with another process's; None: they cannot be had without reading on."""
        ...

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]: ...

    def begin_serving(self, worker: int, num_workers: int) -> None:
        """Told once to a source that is to make batches for another process."""
        ...

    def make(self, order: dict[str, Any]) -> Any:
        """The batch, the Failure that stands in its place, or END; NeedsAnew asks for an input that was just opened."""
        ...

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None: ...


class Channel(Protocol):
    """The way to the processes that read one input."""

    def request(
        self, wanted: Iterator[Wanted], fingerprint: list[Any], seen: Look | None
    ) -> Generator[tuple[Wanted, Any], None, None]:
        """What is wanted with what was made of it, in the order in which it was wanted, each once."""
        ...


class RemoteSource:
    """A source whose batches come from other processes, ahead of need and over the ends of epochs."""

    is_ahead = True

    def __init__(self, inner: Source, channel: Channel, shared: Shared, *, repeat: bool) -> None:
        if not hasattr(inner, "wanted"):
            raise UserError(
                f"{shared.name}: {type(inner).__name__} cannot be read by other processes.",
                "Return a DataLoader or a list of batches, or leave --stream_data out.",
            )
        self._inner: Servable = inner  # type: ignore[assignment]
        self._channel, self._repeat = channel, repeat
        self.batch_size = inner.batch_size
        self.num_batches = inner.num_batches
        self.num_samples_of_last = inner.num_samples_of_last
        self.batch_sizes_vary = inner.batch_sizes_vary
        self.end = inner.end
        self._coming: Generator[tuple[Wanted, Any], None, None] | None = None
        self._held: tuple[Wanted, Any] | None = None  # the first of an epoch that has not begun
        self._next = (0, 0)  # what `_coming` gives next

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        if self._coming is None or self._next != (epoch, start):
            self._begin(epoch, start)
        coming = self._coming
        assert coming is not None
        while (each := self._take(coming)) is not None:
            wanted, made = each
            if wanted.epoch != epoch:
                self._held = each
                break
            numbered = self._inner.finish(wanted, made)
            if numbered is not None:
                number, batch, counts = numbered
                self._next = (epoch, number + 1)
                yield number, self._pinned(batch), counts
                if self._coming is not coming:
                    return  # moved from outside
            elif not self._inner.knows_its_end and self._inner.lanes_have_ended:
                self._stop()
                break
        else:
            self._stop()
        self._next = (epoch + 1, 0)

    def _pinned(self, batch: Any) -> Any:
        return torch_pin.pin_memory(batch) if self._inner.pins_memory else batch  # type: ignore[no-untyped-call]

    def _take(self, coming: Iterator[tuple[Wanted, Any]]) -> tuple[Wanted, Any] | None:
        held, self._held = self._held, None
        return next(coming, None) if held is None else held

    def _begin(self, epoch: int, start: int) -> None:
        self._stop()
        probe = self._inner.probe
        seen = None if probe is None else probe.tell()
        self._coming = self._channel.request(self._wanted(epoch, start), self._inner.fingerprint, seen)
        self._next = (epoch, start)

    def _wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        yield from self._inner.wanted(epoch, start)
        while self._repeat and self._inner.knows_its_end:
            epoch += 1
            yield from self._inner.wanted(epoch, 0)

    def _stop(self) -> None:
        if self._coming is not None:
            self._coming.close()
        self._coming = self._held = None

    def state(self) -> dict[str, Any] | None:
        return self._inner.state()

    def load_state(self, state: dict[str, Any] | None) -> None:
        self._inner.load_state(state)

    def reread(self, epoch: int, number: int) -> Any | None:
        return self._inner.reread(epoch, number)

    def explain(self, error: BaseException, epoch: int) -> UserError | None:
        return None

    def close(self) -> None:
        self._stop()
        self._inner.close()
