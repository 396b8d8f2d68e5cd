"""Joins batches of our resumable loader to the input of one call of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.runtime.fixed_shape import FixedShapeFeed, Signature
from portwright.targets.ipu.step import flatten_batch

KEEPER = "a program of an IPU"  # what fixes shapes and the values in a batch that are not tensors


class Call(NamedTuple):
    """The inputs of one call: the joined batches, and the first batch, whose structure all have."""

    tensors: list[Tensor]
    batch: Any
    num_samples: int
    signature: Signature


def join(batches: list[Any]) -> list[Tensor]:
    parts = [flatten_batch(batch) for batch in batches]
    if len(parts) == 1:
        return [tensor.contiguous() for tensor in parts[0]]
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


class TrainingFeed(FixedShapeFeed):
    """An endless sequence of calls."""

    def __init__(
        self,
        loader: ResumableLoader,
        num_batches: int,
        prepare: Callable[[Any], Any],
        note: Callable[[str], None],
    ) -> None:
        super().__init__(loader, KEEPER, note, prepare)
        self._num_batches = num_batches

    def next_call(self) -> Call:
        batches, num_samples = [], 0
        for _ in range(self._num_batches):
            batches.append(self.next_batch())
            num_samples += self._loader.last_counts[1]
        return Call(join(batches), batches[0], num_samples, self._signature)
