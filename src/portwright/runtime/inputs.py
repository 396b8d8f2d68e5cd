"""The data of a job, as the sessions of all targets need it: a loader for each input, its notes, its failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.job.problems import show
from portwright.job.section import same_value
from portwright.runtime.batches import walk_tensors
from portwright.target import JobSpec

DataFn = Callable[[Any], Any]
_LONGEST = 100  # of a value in a message


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
    """Opens the inputs of a job for one process of many; `note` hears each thing that they tell once."""

    def __init__(
        self, job: JobSpec, note: Callable[[str], None], *, rank: int = 0, world_size: int = 1
    ) -> None:
        self._job, self._note, self._rank, self._world_size = job, note, rank, world_size
        self._told: set[str] = set()

    def open(self, name: str, *, repeat: bool) -> ResumableLoader:
        params = self._job.params
        loader = ResumableLoader(
            find_data_fn(self._job, name)(params.values),
            name=name,
            seed=params.runconfig.seed,
            rank=self._rank,
            world_size=self._world_size,
            repeat=repeat,
        )
        self.tell_notes(loader)
        return loader

    def first_batches(self, name: str, num_batches: int) -> list[Any]:
        """The first batches of an input, by a loader of their own."""
        loader = self.open(name, repeat=False)
        batches = list(islice(loader, num_batches))
        loader.close()
        return batches

    def tell_notes(self, loader: ResumableLoader) -> None:
        """Some notes come up only while batches are read."""
        for line in loader.notes:
            if line not in self._told:
                self._told.add(line)
                self._note(line)


@contextmanager
def explaining(loader: ResumableLoader | None) -> Iterator[None]:
    """torch tells of a dead data worker anywhere in the main thread; the loader knows what it was doing."""
    try:
        yield
    except RuntimeError as error:
        known = None if loader is None else loader.explain(error)
        if known is None:
            raise
        raise known from error


def check_constants(name: str, first: Any, other: Any, keeper: str) -> None:
    """What is no tensor in a batch becomes a constant of `keeper`, a compiled program: refused where it changes."""
    found = _find_change(first, other, "batch")
    if found is not None:
        what, one, two = found
        raise UserError(
            f"{name}: {what} changes from {_shorten(one)} to {_shorten(two)} between two batches, and {keeper} keeps it as it "
            "was at first.",
            "Leave it out of the batch, or make it a tensor, in data.py.",
        )


def _find_change(one: Any, two: Any, path: str) -> tuple[str, Any, Any] | None:
    """What differs, at the outermost place that holds no tensor, and both values."""
    if not any(True for batch in (one, two) for _ in walk_tensors(batch)):
        return None if _are_equal(one, two) else (f"{path}, which is no tensor,", one, two)
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        if set(one) != set(two):
            return f"the list of keys of {path}", list(one), list(two)
        parts = [(f"{path}[{key!r}]", one[key], two[key]) for key in one]
    elif isinstance(one, tuple | list) and isinstance(two, tuple | list):
        if type(one) is not type(two) or len(one) != len(two):
            return (
                f"the kind of {path}",
                f"{type(one).__name__} of {len(one)}",
                f"{type(two).__name__} of {len(two)}",
            )
        parts = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, two, strict=True))]
    elif not (isinstance(one, Tensor) and isinstance(two, Tensor)) and type(one) is not type(two):
        return f"the kind of {path}", type(one).__name__, type(two).__name__
    changes = (_find_change(a, b, part) for part, a, b in parts)
    return next((change for change in changes if change is not None), None)


def _shorten(value: Any) -> str:
    text = show(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _are_equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    try:
        return same_value(one, two)
    except (ValueError, TypeError, RuntimeError):  # arrays further in, which have no one truth
        return False
