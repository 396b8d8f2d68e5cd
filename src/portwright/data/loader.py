"""The trainer's data loader: it knows its position and can continue from it after a kill."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from portwright.data.advice import advise
from portwright.data.mapped import MapSource
from portwright.data.order import iterates_like
from portwright.data.source import Channel, ListSource, RemoteSource, Shared, Source
from portwright.data.split import Counts
from portwright.data.streamed import StreamSource
from portwright.errors import UserError

_DATALOADER_CURE = "Return torch.utils.data.DataLoader(dataset, batch_size=...), or a list of batches."


class ResumableLoader:
    """Gives the batches of a user's loader, sharded over the ranks, from any position on.

    With `repeat` it runs for ever, epoch after epoch, and every iter() continues where the last one stopped.
    Without it, each iter() is one pass over epoch 0, or over the rest of the epoch that `seek` chose.
    With a `channel` other processes make the batches; they are the same batches.
    """

    def __init__(
        self,
        loader: Any,
        *,
        name: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        repeat: bool,
        channel: Channel | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size}")
        self._shared = Shared(name, seed, rank, world_size, keeps_small=not repeat)
        self._source: Source = open_source(loader, self._shared)
        if channel is not None:
            self._source = RemoteSource(self._source, channel, self._shared, repeat=repeat)
        for line in advise(loader, is_training=repeat):
            self._shared.note(line)
        self._repeat = repeat
        self._epoch = 0
        self._batch = 0  # number of the next batch in its epoch
        self._samples = 0  # given to all ranks together since the start of the run
        self._num_moves = 0  # changes when the position is moved from outside
        self._was_sought = False
        # A weak reference, so that the workers end with the last user of this iterator.
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self.last_counts: Counts = (0, 0)

    @property
    def notes(self) -> list[str]:
        """Messages for the user; some arise only while batches are read."""
        return self._shared.notes

    @property
    def batch_size(self) -> int | None:
        """Samples of a full batch on all ranks together, where it is known."""
        return self._source.batch_size

    @property
    def num_batches(self) -> int | None:
        """Batches in an epoch, where it is known."""
        return self._source.num_batches

    @property
    def num_samples_of_last(self) -> int | None:
        """Samples in an epoch's last batch on all ranks together, where it is known."""
        return self._source.num_samples_of_last

    @property
    def num_full_batches(self) -> int | None:
        """Batches in an epoch without a short last one, where it is known."""
        num_batches, last = self.num_batches, self.num_samples_of_last
        if num_batches is None:
            return None
        is_short = last is not None and self.batch_size is not None and last < self.batch_size
        return num_batches - is_short

    @property
    def is_ahead(self) -> bool:
        """Whether batches are made while the last one is used: by workers, or by a thread where that saves time."""
        return self._source.is_ahead

    def __iter__(self) -> Iterator[Any]:
        if not self._repeat:
            if not self._was_sought:
                self._move(0, 0, 0)
            self._was_sought = False
            return self._run()
        running = self._find_running()
        if running is None:
            running = self._run()
            self._running = weakref.ref(running)
        return running

    def _find_running(self) -> Generator[Any, None, None] | None:
        return None if self._running is None else self._running()

    def _run(self) -> Generator[Any, None, None]:
        try:
            while True:
                num_moves = self._num_moves
                for number, batch, counts in self._source.read(self._epoch, self._batch):
                    self._batch = number + 1
                    self._samples += counts[1]
                    self.last_counts = counts
                    yield batch
                    if self._num_moves != num_moves:
                        break
                else:
                    self._epoch += 1
                    self._batch = 0
                    if not self._repeat:
                        return
        finally:
            self._running = None

    def position(self) -> dict[str, Any]:
        """The position of the next batch that has not been given yet, as JSON."""
        epoch, batch, state = self._epoch, self._batch, self._source.state()
        has_ended = state is not None and state.pop("has_ended")
        if batch and (batch == self._source.end or has_ended):
            epoch, batch = epoch + 1, 0
        position = {"epoch": epoch, "batch": batch, "samples": self._samples, "batch_size": self.batch_size}
        return position if state is None else {**position, "state": state}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Moves to a position that `position()` gave in this run or in an earlier one."""
        epoch, batch, samples = (
            _count(position, key, self._shared.name) for key in ("epoch", "batch", "samples")
        )
        old_size, new_size = position.get("batch_size"), self.batch_size
        if isinstance(old_size, int) and old_size > 0 and new_size is not None and old_size != new_size:
            batch = batch * old_size // new_size
            self._shared.note(
                f"the batch size was {old_size} and is {new_size}: the epoch continues at its batch {batch}."
            )
        state = position.get("state")
        if state is not None and not (isinstance(state, Mapping) and {"dataset", "random"} <= state.keys()):
            raise _damaged(self._shared.name, f"state is {type(state).__name__} without dataset and random")
        if self._find_running() is not None and (epoch, batch) == (self._epoch, self._batch):
            return  # already there; batches in preparation stay valid
        self._move(epoch, batch, samples)
        self._source.load_state(None if state is None else dict(state))
        self._was_sought = True

    def _move(self, epoch: int, batch: int, samples: int) -> None:
        if (epoch, batch) != (self._epoch, self._batch):
            self._num_moves += 1
        self._epoch, self._batch, self._samples = epoch, batch, samples

    def recent(self, back: int) -> Any | None:
        """Loads again the batch given `back` batches ago (1: the last); None where that cannot be done."""
        epoch, number = self._epoch, self._batch - back
        while number < 0 and epoch > 0 and self.num_batches:
            epoch, number = epoch - 1, number + self.num_batches
        if back < 1 or number < 0 or self._source.end is None:
            return None
        return self._source.reread(epoch, number)

    def explain(self, error: BaseException) -> UserError | None:
        """Tells which sample killed a worker, if that is what the error is about.

        torch reports a dead worker from a signal handler, so that the error may surface anywhere in the main thread.
        """
        return self._source.explain(error, self._epoch)

    def close(self) -> None:
        """Ends the workers; the position stays."""
        running = self._find_running()
        if running is not None:
            running.close()
        self._source.close()


def _count(position: Mapping[str, Any], key: str, name: str) -> int:
    value = position.get(key)
    if type(value) is not int or value < 0:
        raise _damaged(name, f"{key} is {value!r}")
    return value


def _damaged(name: str, how: str) -> UserError:
    return UserError(
        f"{name}: the checkpoint's data position is damaged: {how}.", "Resume from an older checkpoint."
    )


def open_source(data: Any, shared: Shared) -> Source:
    """A Source, readable from any batch on, for what the user's data function returned."""
    refusal = _refuse(data)
    if refusal:
        raise UserError(f"{shared.name}: the data function returned {refusal}.", _DATALOADER_CURE)
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset) or not iterates_like(data, DataLoader):
            return StreamSource(data, shared)
        return MapSource(data, shared)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return ListSource(data, shared)
    return StreamSource(data, shared)


def _refuse(data: Any) -> str | None:
    """Why an object cannot serve as a loader; None where it can."""
    kind = type(data).__name__
    if data is None:
        return "None: a return statement is missing"
    if isinstance(data, (str, bytes, Mapping)) or hasattr(data, "keys"):
        return f"a {kind}, which is no sequence of batches"
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return f"one {kind} of shape {tuple(data.shape)} instead of batches"
    is_map_style = isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    if is_map_style or hasattr(data, "__getitems__"):
        return f"the data set {kind} itself, which gives samples and not batches"
    if isinstance(data, (list, tuple)) and any(isinstance(item, (DataLoader, Dataset)) for item in data):
        return f"a {kind} of {len(data)} loaders or data sets instead of one"
    if isinstance(data, type) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        shown = f"the class {data.__name__}" if isinstance(data, type) else f"a {kind}"
        hint = " (it was not called)" if callable(data) else ""
        return f"{shown}{hint}, which cannot be iterated"
    return None
