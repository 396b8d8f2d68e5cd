"""Which programs a script put on the device, and how often each was run: what `portwright emulate` and verify ask at the end."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from portwright.emulate import note_made

_OURS = str(Path(__file__).parents[1])  # all emulators


class Made(NamedTuple):
    """A program of the user's script: `kind` is training, inference or compilation, `where` the user's file:line."""

    kind: str
    where: str
    model: str
    calls: int


class Entry:
    """One traced program."""

    def __init__(self, kind: str, model: str) -> None:
        self.kind, self.model, self.where = kind, model, _user_line()
        self.calls, self.used = 0, False

    def made(self) -> Made:
        return Made(self.kind, self.where, self.model, self.calls)


_entries: list[Entry] = []
_counts: Counter[str] = Counter()


def note_program(kind: str, model: str) -> Entry:
    note_made()
    _entries.append(Entry(kind, model))
    return _entries[-1]


def count(name: str) -> None:
    """A call of compile, run or to_cpu."""
    _counts[name] += 1


def executors() -> list[Made]:
    return [entry.made() for entry in _entries]


def unused_executors() -> list[Made]:
    """Programs that were put on the device and neither run nor brought back."""
    return [entry.made() for entry in _entries if entry.kind != "compilation" and not entry.used]


def call_counts() -> dict[str, int]:
    return {name: _counts[name] for name in ("compile", "trace_graph", "run", "to_cpu")}


def forget_all() -> None:
    """Starts the ledger anew, for a process that runs several scripts."""
    _entries.clear()
    _counts.clear()


def _user_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
