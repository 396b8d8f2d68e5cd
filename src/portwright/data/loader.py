"""The loader that the trainer draws from: it knows its position, and takes it up again after a kill."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from portwright.data.advice import advise
from portwright.data.listed import ListSource
from portwright.data.mapped import MapSource
from portwright.data.order import iterates_like
from portwright.data.remote import Channel, RemoteSource
from portwright.data.source import Shared, Source
from portwright.data.split import Counts
from portwright.data.streamed import StreamSource
from portwright.errors import UserError

_DATALOADER_CURE = "Return torch.utils.data.DataLoader(dataset, batch_size=...), or a list of batches."


class ResumableLoader:
    """Gives the batches of a user's loader, sharded over the ranks, from any position on.

    With `repeat` it goes on for ever, epoch after epoch, and every iter() continues where the last one stood.
    Without, each iter() is one pass over epoch 0, or over the rest of the epoch that was sought.
    With a `channel` the batches are made by other processes, and are the same.
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
        self._source = open_source(loader, self._shared)
        if channel is not None:
            self._source = RemoteSource(self._source, channel, self._shared, repeat=repeat)
        for line in advise(loader, is_training=repeat):
            self._shared.note(line)
        self._repeat = repeat
        self._epoch = 0
        self._batch = 0  # number of the next batch in its epoch
        self._samples = 0  # of all ranks, since the start of the run
        self._turn = 0  # changes when the position is moved from outside
        self._was_sought = False
        # Weak, so that workers end when the last one who draws from them lets go.
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self.last_counts: Counts = (0, 0)

    @property
    def notes(self) -> list[str]:
        """What the user should be told; some come up only while batches are read."""
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
    def batch_sizes_vary(self) -> bool:
        """Whether batches may differ in size; True also where that is not known beforehand."""
        return self._source.batch_sizes_vary

    @property
    def is_ahead(self) -> bool:
        """Whether batches are made while the last one is used: by workers, or by a thread once that has shown to pay."""
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
                turn = self._turn
                for number, batch, counts in self._source.read(self._epoch, self._batch):
                    self._batch = number + 1
                    self._samples += counts[1]
                    self.last_counts = counts
                    yield batch
                    if self._turn != turn:
                        break
                else:
                    self._epoch += 1
                    self._batch = 0
                    if not self._repeat:
                        return
        finally:
            self._running = None

    def position(self) -> dict[str, Any]:
        """Gives the place of the next batch that has not been handed out, as JSON."""
        epoch, batch, state = self._epoch, self._batch, self._source.state()
        has_ended = state is not None and state.pop("has_ended")
        if batch and (batch == self._source.end or has_ended):
            epoch, batch = epoch + 1, 0
        position = {"epoch": epoch, "batch": batch, "samples": self._samples, "batch_size": self.batch_size}
        return position if state is None else {**position, "state": state}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Moves to a position that `position()` gave, in this process or in one that is dead."""
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
            return  # already there, with batches perhaps on their way
        self._move(epoch, batch, samples)
        self._source.load_state(None if state is None else dict(state))
        self._was_sought = True

    def _move(self, epoch: int, batch: int, samples: int) -> None:
        if (epoch, batch) != (self._epoch, self._batch):
            self._turn += 1
        self._epoch, self._batch, self._samples = epoch, batch, samples

    def recent(self, back: int) -> Any | None:
        """Loads again the batch handed out `back` batches ago (1: the last); None where that cannot be done."""
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
    """The input that a user's data function has returned, as something that can be read from any batch on."""
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
    """Says what is wrong with something that is no loader."""
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
