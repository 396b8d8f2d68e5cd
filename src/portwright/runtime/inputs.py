"""The data of a job, as the sessions of all targets need it: a loader for each input, its notes, its failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.target import JobSpec

DataFn = Callable[[Any], Any]


def find_data_fn(job: JobSpec, name: str) -> DataFn:
    """The user's function that makes an input, `train_input` or `eval_input`; refused where run() got none."""
    trains = name == "train_input"
    data_fn: DataFn | None = job.train_data_fn if trains else job.eval_data_fn
    if data_fn is None:
        kind = "train_data_fn" if trains else "eval_data_fn"
        raise UserError(
            f"mode {job.mode} needs {kind}, and run() was called without it.", f"Pass {kind}=... to run()."
        )
    return data_fn


class Inputs:
    """Opens the inputs of a job for one process of many; `note` gets each of their notes once."""

    def __init__(
        self, job: JobSpec, note: Callable[[str], None], *, rank: int = 0, world_size: int = 1
    ) -> None:
        self._job, self._note, self._rank, self._world_size = job, note, rank, world_size
        self._told: set[str] = set()

    def open(self, name: str, *, repeat: bool, here: bool = False) -> ResumableLoader:
        """The input, read by the other tasks of a launch where the job has a stream; else, or with `here`, in this process."""
        params, data_fn = self._job.params, find_data_fn(self._job, name)
        stream = None if here else self._job.stream
        channel = None if stream is None else stream.channel(name, self._job)
        loader = ResumableLoader(
            data_fn(params.values),
            name=name,
            seed=params.runconfig.seed,
            rank=self._rank,
            world_size=self._world_size,
            repeat=repeat,
            channel=channel,
        )
        self.tell_notes(loader)
        return loader

    def first_batches(self, name: str, num_batches: int) -> list[Any]:
        """The first batches of an input, by a loader of their own, in this process."""
        loader = self.open(name, repeat=False, here=True)
        batches = list(islice(loader, num_batches))
        loader.close()
        return batches

    def tell_notes(self, loader: ResumableLoader) -> None:
        """Passes on notes that came up while batches were read."""
        for line in loader.notes:
            if line not in self._told:
                self._told.add(line)
                self._note(line)


@contextmanager
def explaining(loader: ResumableLoader | None) -> Iterator[None]:
    """torch raises for a dead data worker anywhere in the main thread; the loader explains what that worker was doing."""
    try:
        yield
    except RuntimeError as error:
        known = None if loader is None else loader.explain(error)
        if known is None:
            raise
        raise known from error
