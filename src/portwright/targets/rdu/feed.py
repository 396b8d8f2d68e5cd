"""Batches of our resumable loader that all have the shape a program was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from portwright.data.loader import ResumableLoader
from portwright.errors import UserError
from portwright.runtime.inputs import check_constants
from portwright.targets.rdu.step import differing, signature_of


class TrainingFeed:
    """An endless row of batches; a short last batch of an epoch is left out."""

    def __init__(self, loader: ResumableLoader, note: Callable[[str], None]) -> None:
        self._loader, self._note = loader, note
        self._batches: Iterator[Any] | None = None
        self._signature: Any = None
        self._first: Any = None
        self._is_told = False

    @property
    def full_batches(self) -> int | None:
        return self._loader.num_full_batches

    def restart(self) -> None:
        """Goes on where the loader was moved to."""
        self._batches = None

    def next(self) -> Any:
        batch, is_short = self._draw()
        if is_short:
            self._tell_short()
            batch, is_short = self._draw()
        if is_short:
            raise UserError(
                f"train_input: a batch has {self._loader.last_counts[1]} samples where {self._loader.batch_size} were asked "
                "for, twice in a row, and a PEF has one shape.",
                "Take a smaller batch_size, or more data.",
            )
        signature = signature_of(batch)
        if self._signature is None:
            self._signature, self._first = signature, batch
        if signature != self._signature:
            raise UserError(
                f"train_input: {differing(self._signature, signature)}; a PEF has one shape.",
                "Pad every batch to one shape in data.py.",
            )
        check_constants("train_input", self._first, batch, "a PEF")
        return batch

    def _draw(self) -> tuple[Any, bool]:
        if self._batches is None:
            self._batches = iter(self._loader)
        batch = next(self._batches)
        size = self._loader.batch_size
        return batch, size is not None and self._loader.last_counts[1] < size

    def _tell_short(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._note(
                f"train_input: the last batch of an epoch has {self._loader.last_counts[1]} samples instead of "
                f"{self._loader.batch_size}, and a PEF has one shape: it is left out."
            )
