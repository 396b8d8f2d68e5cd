"""Batches for a program that a vendor compiled: all of one shape, and all values that are no tensors stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.job.problems import show
from portwright.job.section import same_value
from portwright.watching.trees import walk_tensors

Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
_LONGEST = 100  # of a value in a message


class FixedShapeFeed:
    """Endless full batches for a compiled program, called `keeper` in messages; a short last batch of an epoch is left out."""

    def __init__(
        self,
        loader: ResumableLoader,
        keeper: str,
        note: Callable[[str], None],
        prepare: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        self._loader, self._keeper, self._note, self._prepare = loader, keeper, note, prepare
        self._batches: Iterator[Any] | None = None
        self._first: Any = None
        self._signature: Signature = ()
        self._is_told = False

    def restart(self) -> None:
        """Goes on from the loader's new position."""
        self._batches = None

    @property
    def full_batches(self) -> int | None:
        return self._loader.num_full_batches

    def next_batch(self) -> Any:
        batch, is_short = self._draw()
        if is_short:
            self._tell_short()
            batch, is_short = self._draw()
        if is_short:
            raise UserError(
                f"train_input: a batch has {self._loader.last_counts[1]} samples where {self._loader.batch_size} were asked "
                f"for, twice in a row, and {self._keeper} has one shape.",
                "Take a smaller batch_size, or more data.",
            )
        signature = signature_of(batch)
        if not self._signature:
            self._first, self._signature = batch, signature
        elif signature != self._signature:
            raise shapes_differ("train_input", self._signature, signature, self._keeper)
        check_constants("train_input", self._first, batch, self._keeper)
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
                f"{self._loader.batch_size}, and {self._keeper} has one shape: it is left out."
            )


def signature_of(batch: Any) -> Signature:
    return tuple((path, tensor.dtype, tuple(tensor.shape)) for path, tensor in walk_tensors(batch))


def shapes_differ(name: str, expected: Signature, received: Signature, keeper: str) -> UserError:
    for one, other in zip(expected, received, strict=False):
        if one != other:
            path, dtype, shape = one
            what = f"{path} was {_show_kind(dtype, shape)} and {other[0]} is {_show_kind(other[1], other[2])}"
            break
    else:
        what = f"a batch had {len(expected)} tensors and another has {len(received)}"
    return UserError(
        f"{name}: {what}, and {keeper} has one shape.", "Pad every batch to one shape in data.py."
    )


def _show_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


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
    """The path of what differs, at the outermost place that holds no tensor, and both values."""
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
    except (ValueError, TypeError, RuntimeError):  # nested arrays, whose comparison is no single truth value
        return False
