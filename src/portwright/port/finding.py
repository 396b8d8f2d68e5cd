"""A finding of a rule: its place, its cure, and the edits that make the cure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Safety = Literal["safe", "unsafe", "manual"]
_CELL = re.compile(r"cell (\d+): ")
SAFETIES: tuple[Safety, ...] = ("safe", "unsafe", "manual")


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces the bytes from `start` to `end` of a file's UTF-8 text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One place in one file that does not work on a target as it is.

    `safe` edits cannot change results, `unsafe` ones can, and `manual` findings have no edits.
    """

    code: str
    path: str
    line: int  # from 1
    column: int  # in characters, from 1
    message: str
    cure: str
    safety: Safety
    targets: tuple[str, ...]
    end_line: int = 0
    edits: tuple[Edit, ...] = ()
    imports: tuple[str, ...] = ()  # statements that the edits need

    @property
    def place(self) -> tuple[str, int, int, int, str]:
        """The sort key of findings; in a notebook the cell comes before the line."""
        cell = _CELL.match(self.message) if self.path.endswith(".ipynb") else None
        return (self.path, int(cell[1]) if cell else 0, self.line, self.column, self.code)

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "code": self.code,
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "cure": self.cure,
            "safety": self.safety,
            "targets": list(self.targets),
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Finding:
        return cls(**{**row, "targets": tuple(row["targets"])})
