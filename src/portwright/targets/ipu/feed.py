"""Batches of our resumable loader, put together to what one call of a program takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.runtime.batches import walk_tensors
from portwright.runtime.inputs import check_constants
from portwright.targets.ipu.step import flatten_batch

Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
KEEPER = "a program of an IPU"  # of what is no tensor in a batch


class Call(NamedTuple):
    """The inputs of one call: the batches joined, and the first of them, whose structure they all have."""

    tensors: list[Tensor]
    batch: Any
    num_samples: int
    signature: Signature


def signature_of(batch: Any) -> Signature:
    return tuple((path, tensor.dtype, tuple(tensor.shape)) for path, tensor in walk_tensors(batch))


def join(batches: list[Any]) -> list[Tensor]:
    parts = [flatten_batch(batch) for batch in batches]
    if len(parts) == 1:
        return [tensor.contiguous() for tensor in parts[0]]
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


class TrainingFeed:
    """An endless row of calls; a program has one shape, so a short last batch of an epoch is left out."""

    def __init__(
        self,
        loader: ResumableLoader,
        num_batches: int,
        prepare: Callable[[Any], Any],
        note: Callable[[str], None],
    ) -> None:
        self._loader, self._num_batches, self._prepare, self._note = loader, num_batches, prepare, note
        self._batches: Iterator[Any] | None = None
        self._first: Any = None
        self._signature: Signature = ()
        self._is_told = False

    def restart(self) -> None:
        """Goes on where the loader was moved to."""
        self._batches = None

    @property
    def full_batches(self) -> int | None:
        return self._loader.num_full_batches

    def next_call(self) -> Call:
        batches, num_samples = [], 0
        for _ in range(self._num_batches):
            batches.append(self._next_full())
            num_samples += self._loader.last_counts[1]
        return Call(join(batches), batches[0], num_samples, self._signature)

    def _next_full(self) -> Any:
        batch, is_short = self._draw()
        if is_short:
            self._tell_short()
            batch, is_short = self._draw()
            if is_short:
                raise UserError(
                    f"train_input: a batch has {self._loader.last_counts[1]} samples where {self._loader.batch_size} were "
                    "asked for, twice in a row, and a program of an IPU has one shape.",
                    "Take a smaller batch_size, or more data.",
                )
        signature = signature_of(batch)
        if not self._signature:
            self._first, self._signature = batch, signature
        elif signature != self._signature:
            raise shapes_differ("train_input", self._signature, signature)
        check_constants("train_input", self._first, batch, KEEPER)
        return batch

    def _draw(self) -> tuple[Any, bool]:
        if self._batches is None:
            self._batches = iter(self._loader)
        batch = self._prepare(next(self._batches))
        size = self._loader.batch_size
        return batch, size is not None and self._loader.last_counts[1] < size

    def _tell_short(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._note(
                f"train_input: the last batch of an epoch has {self._loader.last_counts[1]} samples instead of "
                f"{self._loader.batch_size}, and a program of an IPU has one shape: it is left out."
            )


def shapes_differ(name: str, expected: Signature, received: Signature) -> UserError:
    for one, other in zip(expected, received, strict=False):
        if one != other:
            path, dtype, shape = one
            what = f"{path} was {_show(dtype, shape)} and {other[0]} is {_show(other[1], other[2])}"
            break
    else:
        what = f"a batch had {len(expected)} tensors and another has {len(received)}"
    return UserError(
        f"{name}: {what}, and a program of an IPU has one shape.", "Pad every batch to one shape in data.py."
    )


def _show(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
