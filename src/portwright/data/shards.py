"""Each rank's indices of each batch, and what of that the workers have been given to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from portwright.data.order import Order
from portwright.data.source import Shared
from portwright.data.split import Counts, part_bounds
from portwright.data.workers import Task

Counted = tuple[
    Task, Counts | None
]  # None: one index is a whole batch, and its samples are yet to be counted


class Shards:
    """Splits the batches of an order among ranks; iterated as a DataLoader's sampler, it remembers its tasks."""

    def __init__(self, order: Order, shared: Shared, num_parts: int, num_replicas: int, what: str) -> None:
        self._order = order
        self._shared = shared
        self._num_parts = num_parts
        self._num_replicas = num_replicas
        self._what = what
        self._epoch = self._start = 0
        self.in_flight: deque[Counted] = deque()  # handed to workers, results not yet taken

    def read(self, epoch: int, start: int) -> Iterator[Counted]:
        rank, num_parts, replicas = self._shared.rank, self._num_parts, self._num_replicas
        is_batched = self._order.is_batched
        num_given = num_dropped = 0
        for number, indices in self._order.batches(epoch, start):
            if not (is_batched or isinstance(indices, list)):
                yield Task(epoch, number, 0, indices), None
            elif num_parts == 1:
                size = len(indices)
                yield Task(epoch, number, 0, indices), (size, size * replicas)
            else:
                size = len(indices)
                if size >= num_parts:
                    low, high = part_bounds(size, rank, num_parts)
                    yield Task(epoch, number, low, indices[low:high]), (high - low, size)
                elif (counts := self._shared.counts_of_small(size)) is not None:
                    yield Task(epoch, number, 0, indices), counts
                else:
                    num_dropped += 1
                    continue
            num_given += 1
        if not num_given and start == 0:
            raise self._shared.no_batch_error(f"the sampler of {self._what}", num_dropped)

    def aim(self, epoch: int, start: int) -> deque[Counted]:
        """Says what the next iteration is to give, and where it remembers that."""
        self._epoch, self._start = epoch, start
        self.in_flight = deque()
        return self.in_flight

    def __iter__(self) -> Iterator[Task]:
        in_flight = self.in_flight
        for task, counts in self.read(self._epoch, self._start):
            in_flight.append((task, counts))
            yield task
