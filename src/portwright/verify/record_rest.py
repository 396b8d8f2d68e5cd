"""Follows a script after its recorded steps: further epochs are cut to one batch, and no step is measured."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from time import monotonic
from typing import Any, TextIO

from portwright.verify.record_digest import sums, walk

_EPOCHS, _EVALUATIONS = 3, 2  # ends when so many of both are seen
_UPDATES = 100  # ends after so many updates in any case
_LEAST_SECONDS, _MOST_SECONDS = 5.0, 30.0  # lasts as long as the recorded steps took, within these limits
_GRACE_SECONDS = 30.0  # more time for code that calls no hook
_MOST_LINES = 2000
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_CLOCK = re.compile(r"\d+(?:[:-]\d\d)+")
_CLOCK_SPEED = 7.3


class Rest:
    """What a script did after its recorded steps, and what it printed about its evaluations."""

    def __init__(self) -> None:
        self.is_on = False
        self.updates: list[dict[str, Any]] = []
        self.failure = ""
        self.is_over = False  # the script ended by itself
        self.is_cut = False  # an epoch was cut; without a loader none can be
        self.has_evaluated = False  # since the last training call, also while steps are recorded
        # lines about evaluations: words, and numbers as text
        self.printed: list[tuple[str, list[str]]] = []
        self._num_evaluations = 0
        self._batch: tuple[float, float] | None = None
        self._began = monotonic()
        self._end = 0.0
        self._finish: Callable[[], None] = lambda: None

    def begin(self, finish: Callable[[], None]) -> None:
        """`finish` ends the process; a timer thread calls it if the script calls no hook."""
        taken = min(max(monotonic() - self._began, _LEAST_SECONDS), _MOST_SECONDS)
        self.is_on, self._finish, self._end = True, finish, monotonic() + taken
        last = threading.Timer(taken + _GRACE_SECONDS, finish)
        last.daemon = True
        last.start()

    def check(self) -> None:
        if monotonic() > self._end:
            self._finish()

    @property
    def has_batch(self) -> bool:
        return self._batch is not None

    def note_batch(self, batch: Any) -> None:
        """Notes the batch of the next update."""
        numbers = [sums(tensor) for tensor in walk(batch)]
        self._batch = sum(total for total, _ in numbers), sum(square for _, square in numbers)

    def begin_training(self) -> None:
        """A training call begins, which ends an evaluation."""
        self._num_evaluations += self.has_evaluated
        self.has_evaluated = False

    def note_update(self, rates: list[float], calls: list[int], num_epochs: int) -> None:
        """Notes an update; `calls` counts the calls of each scheduler."""
        self.updates.append({"rates": rates, "calls": calls, "batch": self._batch})
        self._batch = None
        if (num_epochs >= _EPOCHS and self._num_evaluations >= _EVALUATIONS) or len(self.updates) >= _UPDATES:
            self._finish()
        self.check()

    def hook_printing(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.write = self._listening(stream)  # type: ignore[method-assign]

    def _listening(self, stream: TextIO) -> Callable[[str], int]:
        write, line = stream.write, [""]

        def hear(text: str) -> int:
            if self.has_evaluated and len(self.printed) < _MOST_LINES:
                *whole, line[0] = (line[0] + text).replace("\r", "\n").split("\n")
                for each in whole:
                    plain = _CLOCK.sub("", each)
                    numbers = _NUMBER.findall(plain)
                    if numbers:
                        self.printed.append((" ".join(_NUMBER.sub("#", plain).split()), numbers))
            return write(text)

        return hear

    def as_dict(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "failure": self.failure,
            "is_over": self.is_over,
            "is_cut": self.is_cut,
        }


def speed_up_clocks() -> None:
    """Makes the script's clocks run fast, so that printed numbers that depend on the time differ from another run's."""
    for name in ("time", "perf_counter", "monotonic", "process_time"):
        for function, unit in ((name, float), (f"{name}_ns", int)):
            setattr(time, function, _sped_up(getattr(time, function), unit))


def _sped_up(clock: Callable[[], Any], unit: type) -> Callable[[], Any]:
    begin = clock()
    return lambda: unit(begin + _CLOCK_SPEED * (clock() - begin))
