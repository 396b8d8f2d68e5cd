"""Who made which executor, and how often each was called: what `portwright emulate` tells at the end of a run."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from portwright.emulate import note_made

# Of the emulators, of torch, and of the import system.
_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<frozen ")


@dataclass
class Made:
    """An executor of the user's script, in SambaFlow a program: `kind` is training, inference or compilation."""

    kind: str
    model: str
    where: str  # the user's file:line
    calls: int = 0
    is_used: bool = False  # called, compiled or brought back
    details: dict[str, Any] = field(default_factory=dict)  # what its compilation found out

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "where": self.where,
            "model": self.model,
            "calls": self.calls,
            **self.details,
        }


class Ledger:
    """What one emulator made in this process; executors that were dropped are in it, too."""

    def __init__(self, *counted: str) -> None:
        self._counted = counted
        self._counts: Counter[str] = Counter()
        self.executors: list[Made] = []  # in the order in which they were made

    def enter(self, kind: str, model: str, **details: Any) -> Made:
        """Notes a new executor, with the user's line that makes it."""
        note_made()
        self.executors.append(Made(kind, model, _user_line(), details=details))
        return self.executors[-1]

    def count(self, what: str) -> None:
        """Counts a call that the user made, or that the vendor's package makes for them, by name."""
        self._counts[what] += 1

    def call_counts(self) -> dict[str, int]:
        return {name: self._counts[name] for name in self._counted}

    def unused_executors(self) -> list[Made]:
        """Those that nobody called, compiled or brought back: most likely the wrapper got lost."""
        return [made for made in self.executors if made.kind != "compilation" and not made.is_used]

    def forget_all(self) -> None:
        """Starts anew, for a process that runs several scripts."""
        self.executors.clear()
        self._counts.clear()


LEDGERS = {
    "poptorch": Ledger("training", "inference", "setOptimizer", "copyWeightsToHost"),
    "sambaflow": Ledger("compile", "trace_graph", "run", "to_cpu"),
}


def _user_line() -> str:
    """The user's file:line that the present call comes from, or an empty text where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
