"""Who made which executor, and how often each was called: what `portwright emulate` and verify ask at the end of a run."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from portwright.emulate import note_made

_OURS = str(Path(__file__).parents[1])  # all emulators
_TORCH = str(Path(torch.__file__).parent)


class Made(NamedTuple):
    """An executor of the user's script: `kind` is training or inference, `where` the user's file:line.

    The rest is known once it is compiled; `memory` is that of each IPU, as a report has it in JSON.
    """

    kind: str
    where: str
    model: str
    calls: int
    device_iterations: int | None = None
    memory: dict[str, Any] | None = None


class _Entry:
    def __init__(self, kind: str, where: str, model: str) -> None:
        self.kind = kind
        self.where = where
        self.model = model
        self.calls = 0
        self.used = False  # called, compiled or saved
        self.device_iterations: int | None = None
        self.memory: dict[str, Any] | None = None

    def made(self) -> Made:
        return Made(self.kind, self.where, self.model, self.calls, self.device_iterations, self.memory)


_entries: list[_Entry] = []  # outlive their executors: one that was dropped uncalled counts as unused, too
_counts: Counter[str] = Counter()
_of: weakref.WeakKeyDictionary[Any, _Entry] = weakref.WeakKeyDictionary()

COUNTED = ("training", "inference", "setOptimizer", "copyWeightsToHost")


def user_line() -> str:
    """The user's file:line that the present call comes from, or an empty text where there is none."""
    frame = sys._getframe(1)
    for _ in itertools.count():
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, _TORCH, "<frozen ")):
            return f"{name}:{frame.f_lineno}"
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    raise AssertionError("unreachable")


def enter(executor: Any, kind: str, model: str) -> str:
    """Notes a new executor and gives the user's line that made it."""
    entry = _Entry(kind, user_line(), model)
    note_made()
    _entries.append(entry)
    _of[executor] = entry
    return entry.where


def count_call(executor: Any) -> None:
    entry = _of[executor]
    entry.calls += 1
    entry.used = True
    _counts[entry.kind] += 1


def count(what: str) -> None:
    """Counts a call that the user made, or that PopTorch makes for them, by name."""
    _counts[what] += 1


def note_used(executor: Any) -> None:
    """Says that an executor served for compiling or saving, even if it is never called."""
    _of[executor].used = True


def note_compiled(executor: Any, device_iterations: int, memory: dict[str, Any]) -> None:
    """Keeps what a compilation found out, for whoever tells of the run at its end."""
    entry = _of[executor]
    entry.device_iterations, entry.memory = device_iterations, memory


def call_counts() -> dict[str, int]:
    """How often executors were called for training and inference, and setOptimizer and copyWeightsToHost of any."""
    return {name: _counts[name] for name in COUNTED}


def unused_executors() -> list[Made]:
    """The executors made in this process that nobody called, compiled or saved: most likely the wrapper got lost."""
    return [entry.made() for entry in _entries if not entry.used]


def executors() -> list[Made]:
    """All executors made in this process, in the order they were made."""
    return [entry.made() for entry in _entries]


def forget_all() -> None:
    """Starts the ledger anew, for a process that runs several scripts."""
    _entries.clear()
    _counts.clear()
