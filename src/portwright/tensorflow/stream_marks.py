"""Marks in model_dir: saved positions of lanes, from which the next reader of a lane continues.

Without a mark, or where tf.data cannot save its position, the reader draws the earlier batches again and drops them. The
result is the same; it only takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from portwright.errors import PortwrightError
from portwright.job.atomic import remove_directory
from portwright.tensorflow.input_state import Saved
from portwright.tensorflow.resume_point import (
    ResumePoint,
    prune_points,
    read_point,
    saved_points,
    write_point,
)

_FOLDER = "lanes"
_SECONDS = 20.0  # between two marks; a mark that fits a checkpoint may come sooner
_LEAST_SECONDS = 5.0
_PAUSE_FACTOR = 20  # the pause after a mark is at least this many times as long as writing it took
_NUM_KEPT, _NUM_KEPT_ALIGNED = 2, 4


class Marks:
    """The marks of a run's lanes; the training saves a checkpoint, from which it may resume, `every` so many batches."""

    def __init__(self, model_dir: Path, every: int, note: Callable[[str], None]) -> None:
        self._root, self._every, self._note = model_dir / _FOLDER, every, note
        self._has_noted = False

    def of_lane(self, lane: int, num_lanes: int, digest: str) -> LaneMarks:
        folder = self._root / f"{lane}-of-{num_lanes}"
        return LaneMarks(folder, max(1, self._every // num_lanes), digest, self._tell)

    def clear(self) -> None:
        """Removes all marks when a training begins: they may be those of other data."""
        if self._root.is_dir():
            try:
                remove_directory(self._root)
            except OSError as error:
                self._tell(f"the marks in {self._root} cannot be removed ({error})")

    def _tell(self, problem: str) -> None:
        if not self._has_noted:
            self._has_noted = True
            self._note(
                f"{problem}: where a lane is read anew, all batches before are drawn again and dropped."
            )


class LaneMarks:
    """The marks of one lane, for its reader."""

    def __init__(self, folder: Path, every: int, digest: str, tell: Callable[[str], None]) -> None:
        self._folder, self._every, self._digest, self._tell = folder, every, digest, tell
        self._next_time = time.monotonic() + _LEAST_SECONDS

    def find(self, index: int) -> tuple[int, list[bytes]] | None:
        """The newest mark at or before a batch: its index, and the states of the iterators there."""
        for step in sorted((step for step in saved_points(str(self._folder)) if step <= index), reverse=True):
            found = read_point(str(self._folder), step, lambda note: None)
            if found is not None and found[0].input_digest == self._digest and found[1]:
                return found[0].state_runs, found[1]
        return None

    def offer(self, index: int, save: Callable[[], Saved]) -> None:
        """Writes a mark if one is due; called before batch `index` is drawn."""
        start = time.monotonic()
        is_due = index % self._every == 0 or start - self._next_time > _SECONDS
        if start < self._next_time or not is_due or not self._folder.parent.parent.is_dir():
            return
        saved = save()
        if saved.refusal or not saved.states:
            self._next_time = float("inf") if saved.refusal else start + _LEAST_SECONDS
            return
        point = ResumePoint(index, index, 0, "", self._digest, state_runs=saved.num_runs)
        try:
            write_point(str(self._folder), point, saved.states)
            prune_points(str(self._folder), self._worth_keeping())
        except (OSError, PortwrightError) as error:  # two processes may read the same lane for a while
            self._tell(f"where a lane is cannot be kept ({error})")
        now = time.monotonic()
        self._next_time = now + max(_LEAST_SECONDS, _PAUSE_FACTOR * (now - start))

    def _worth_keeping(self) -> set[int]:
        steps = sorted(saved_points(str(self._folder)))
        aligned = [step for step in steps if step % self._every == 0]
        return {*steps[-_NUM_KEPT:], *aligned[-_NUM_KEPT_ALIGNED:]}
