"""A batch in micro-batches: how many of what size, so that the mean over samples stays the mean over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from portwright.errors import UserError
from portwright.runtime.batches import map_tensors, walk_tensors


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
    """The same of a batch whose loader was not asked: its rows, of which those count first that a full batch would have."""
    full = () if batch_size is None else (batch_size // num_replicas, -(-batch_size // num_replicas))
    return _rows_of(batch, full)


def _rows_of(batch: Any, likely: tuple[int, ...]) -> int:
    rows = [len(tensor) for _, tensor in walk_tensors(batch) if tensor.ndim]
    return next((size for size in rows if size in likely), rows[0] if rows else 1)


def split_batch(batch: Any, num_samples: int, runs: list[Run]) -> list[list[Any]]:
    """The micro-batches of each run: every tensor whose first dimension is the samples is split, the rest is shared."""
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


def _rows(batch: Any, num_samples: int, start: int, size: int) -> Any:
    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(0, start, size) if tensor.ndim and len(tensor) == num_samples else tensor

    return map_tensors(batch, rows)


def signature_of(batch: Any) -> tuple[Any, ...]:
    """What a trace depends on: shapes, types and whatever is no tensor."""
    tensors = tuple((path, tuple(t.shape), t.stride(), t.dtype) for path, t in walk_tensors(batch))
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if not isinstance(leaf, torch.Tensor)]
    return tensors, tuple(repr(leaf) for leaf in leaves)
