"""Splits a batch into micro-batches, and chooses their number and size so that the mean over all samples stays the same."""

from __future__ import annotations

import datetime
import enum
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from portwright.errors import UserError
from portwright.runtime.pipelined.schedules import Layout, accepts
from portwright.watching.trees import parts_of, walk_tensors, with_parts

_MICRO_BATCHES_PER_STAGE = 4  # micro-batches: a pipeline of many stages is busy for 4/5 of the time
# Types without tensors, whose text tells two values apart.
_VALUES = (
    bool, int, float, complex, str, bytes, type(None), np.generic, enum.Enum, torch.dtype, torch.device, torch.Size,
    pathlib.PurePath, datetime.date, datetime.timedelta, slice, range, frozenset, set,
)  # fmt: skip


class Run(NamedTuple):
    """Micro-batches of one size, which pass through the pipeline together."""

    num_micro: int
    size: int  # samples of each


def plan_runs(num_samples: int, wanted: int, accepts: Callable[[int], bool]) -> list[Run]:
    """Splits a batch into about `wanted` equal micro-batches that the schedule accepts.

    Where no number near `wanted` divides the batch, the rest is a run of its own.
    """
    wanted = max(1, min(wanted, num_samples))
    for count in range(wanted, wanted // 2, -1):
        if num_samples % count == 0 and accepts(count):
            return [Run(count, num_samples // count)]
    size = -(-num_samples // wanted)
    full, rest = divmod(num_samples, size)
    return [Run(full, size), *([Run(1, rest)] if rest else [])]


def count_samples(batch: Any, local: int) -> int:
    """Samples in a process's part of a batch; an empty part holds samples that do not count."""
    return local if local > 0 else _rows_of(batch, ())


def guess_samples(batch: Any, batch_size: int | None, num_replicas: int) -> int:
    """The samples of a batch whose loader did not count them: its rows, preferably as many as a full batch has."""
    full = () if batch_size is None else (batch_size // num_replicas, -(-batch_size // num_replicas))
    return _rows_of(batch, full)


def _rows_of(batch: Any, likely: tuple[int, ...]) -> int:
    rows = [len(tensor) for _, tensor in walk_tensors(batch) if tensor.ndim]
    return next((size for size in rows if size in likely), rows[0] if rows else 1)


def split_batch(batch: Any, num_samples: int, runs: list[Run]) -> list[list[Any]]:
    """The micro-batches of each run: whatever has an item for each sample is split, the rest is shared."""
    if len(runs) == 1 and runs[0].num_micro == 1:
        return [[batch]]
    if not any(t.ndim and len(t) == num_samples for _, t in walk_tensors(batch)):
        shapes = ", ".join(f"{path} {list(t.shape)}" for path, t in walk_tensors(batch))
        raise UserError(
            f"a batch of {num_samples} samples has no tensor with that many rows: {shapes or 'no tensor at all'}.",
            "Put the samples first in data.py, or use -D runconfig.execution=resident.",
        )
    parts, start = [], 0
    for run in runs:
        own = []
        for _ in range(run.num_micro):
            own.append(_rows(batch, num_samples, start, run.size))
            start += run.size
        parts.append(own)
    return parts


def first_samples(batch: Any, num_samples: int, size: int) -> Any:
    return _rows(batch, num_samples, 0, size)


def _rows(batch: Any, num_samples: int, start: int, size: int) -> Any:
    """The batch with some of its samples alone: tensors, arrays and lists that have an item for each sample are cut."""

    def rows(item: Any) -> Any:
        if isinstance(item, torch.Tensor | np.ndarray):
            return item[start : start + size] if _has_rows(item, num_samples) else item
        parts = parts_of(item)
        # A pair (x, y) of tensors with a row for each of two samples is no list of samples; two names or two boxes are.
        is_list = isinstance(item, tuple | list) and not hasattr(item, "_fields")
        if is_list and len(item) == num_samples and not any(_has_rows(i, num_samples) for i in item):
            return type(item)(item[start : start + size])
        return with_parts(item, {key: rows(part) for key, part in parts.items()})

    return rows(batch)


def _has_rows(item: Any, num_samples: int) -> bool:
    if isinstance(item, torch.Tensor | np.ndarray):
        return bool(item.ndim) and len(item) == num_samples
    if isinstance(item, tuple | list) and len(item) == num_samples:
        return True
    return any(_has_rows(part, num_samples) for part in parts_of(item).values())


def signature_of(batch: Any) -> tuple[Any, ...]:
    """What a trace depends on: shapes, types and the values of whatever is no tensor."""
    return tuple(_signatures(batch, "batch"))


def _signatures(item: Any, path: str) -> Iterator[Any]:
    if isinstance(item, torch.Tensor):
        yield path, tuple(item.shape), item.stride(), item.dtype
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from _signatures(value, f"{path}[{key!r}]")
    elif isinstance(item, tuple | list):
        yield path, type(item).__name__, len(item)
        for index, value in enumerate(item):
            yield from _signatures(value, f"{path}[{index}]")
    elif isinstance(item, np.ndarray) and not item.dtype.hasobject:
        yield path, item.shape, item.dtype.str, item.tobytes()  # its text would leave out values
    elif isinstance(item, _VALUES):
        yield path, type(item).__name__, repr(item)
    else:
        raise UserError(
            f"{path} is a {type(item).__name__}, which a pipeline cannot see into to tell one step's values from another's.",
            "Give batches of tensors, numbers and text in tuples, lists and dicts, or use -D runconfig.execution=resident.",
        )


class MicroPlan:
    """Splits batches into `runconfig.pipeline.micro_batches`, or as many as the stages can do with."""

    def __init__(self, asked: int | None, layout: Layout, note: Callable[[str], None]) -> None:
        self._asked, self._layout, self._note = asked, layout, note
        default = _MICRO_BATCHES_PER_STAGE * layout.num_positions if layout.num_positions > 1 else 1
        self._wanted = default if asked is None else asked

    @property
    def splits(self) -> bool:
        return self._wanted > 1

    def check(self, batch_size: int | None) -> None:
        """Refuses a number that a full batch (of all replicas) cannot be split into, or that the schedule does not take."""
        layout, asked = self._layout, self._asked
        if asked is None or batch_size is None:
            return
        each = batch_size // layout.num_replicas
        if asked > each:
            replicas = layout.num_replicas
            parts = f", of which each of {replicas} replicas gets {each}" if replicas > 1 else ""
            raise UserError(
                f"runconfig.pipeline.micro_batches is {asked}, and a batch has {batch_size} samples{parts}.",
                f"Set micro_batches to {each} at most, or raise train_input.batch_size.",
            )
        if not accepts(layout, asked):
            good = [count for count in range(1, each + 1) if accepts(layout, count)]
            near = min(good, key=lambda count: abs(count - asked)) if good else None
            raise UserError(
                f"runconfig.pipeline.micro_batches is {asked}, which {layout.schedule} does not take with "
                f"{layout.num_positions} stages.",
                f"Set micro_batches: {near}." if near else "Use schedule: gpipe, or a larger batch.",
            )

    def runs(self, num_samples: int) -> list[Run]:
        layout = self._layout
        runs = plan_runs(num_samples, self._wanted, lambda count: accepts(layout, count))
        shown = " and ".join(f"{run.num_micro} of {run.size}" for run in runs)
        if self._asked is not None and runs[0].num_micro != self._asked:
            self._note(
                f"pipelined: a batch of {num_samples} samples passes in other micro-batches than asked for: {shown}."
            )
        few = [run.num_micro for run in runs if not accepts(layout, run.num_micro)]
        if few:
            self._note(
                f"pipelined: of a batch of {num_samples} samples ({shown}), {sum(few)} micro-batch(es) do not suit "
                f"{layout.schedule} with {layout.num_positions} stages: all their forward passes go before the backward passes."
            )
        return runs

    def split(self, batch: Any, num_samples: int) -> list[tuple[Run, list[Any]]]:
        """The micro-batches of each run."""
        runs = self.runs(num_samples)
        return list(zip(runs, split_batch(batch, num_samples, runs), strict=True))
