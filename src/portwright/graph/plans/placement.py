"""Layers on a rectangular fabric of cores: one rectangle each, none over another, in the order of the data.

Layers fill strips from left to right, and the next strip from right to left, so that layers that exchange data
lie side by side. The height of a strip is chosen so that its rectangles are nearly square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Cores of one layer: column and row of its first core, and its extent."""

    x: int
    y: int
    width: int
    height: int

    @property
    def area(self) -> int:
        return self.width * self.height

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shares:
    """Cores of each layer, in proportion to its work, but never fewer than its memory takes."""

    cores: tuple[float, ...]
    least: float  # cores that memory alone takes
    crowding: (
        float  # how many times its share of work a core has, against all the cores that the work would take
    )

    @property
    def total(self) -> float:
        return sum(self.cores)


def share_cores(
    work: Sequence[float], least: Sequence[float], wanted: float, available: float
) -> Shares | None:
    """Gives the work `wanted` cores in all, or as many as there are beside what memory takes; None if memory takes more."""
    if sum(least) > available:
        return None
    total = sum(work)
    per_work = wanted / total if total > 0 else 0.0
    level = per_work
    if sum(max(w * level, m) for w, m in zip(work, least, strict=True)) > available:
        level = _level(work, least, available)
    cores = tuple(max(w * level, m) for w, m in zip(work, least, strict=True))
    return Shares(cores, sum(least), per_work / level if level > 0 else 1.0)


def _level(work: Sequence[float], least: Sequence[float], available: float) -> float:
    """Cores a unit of work when all are given out: those ruled by memory, which have the least work a core, get theirs first."""
    left, work_left = available, sum(work)
    level = left / work_left
    for i in sorted(range(len(work)), key=lambda i: work[i] / least[i] if least[i] > 0 else math.inf):
        if work[i] * level >= least[i] or work_left <= 0:
            break
        left -= least[i]
        work_left -= work[i]
        level = left / work_left if work_left > 0 else 0.0
    return level


def place(cores: Sequence[int], fabric: tuple[int, int]) -> list[Rectangle] | None:
    """A rectangle of at least so many cores for each layer, and less than one row or column more; None if they do not fit.

    The same cores give the same rectangles.
    """
    columns, rows = fabric
    if not cores:
        return []
    total = sum(cores)
    if total > columns * rows:
        return None
    # Begins with a block of the fabric's proportions, and widens it until all layers are inside.
    width = min(columns, max(1, math.ceil(math.sqrt(total * columns / rows))))
    while True:
        placed = _fill(cores, width, rows)
        if placed is not None:
            return placed
        if width == columns:
            return None
        width = min(columns, width + max(1, width // 16))


def _fill(cores: Sequence[int], width: int, rows: int) -> list[Rectangle] | None:
    placed: list[Rectangle] = []
    y, first, to_right = 0, 0, True
    while first < len(cores):
        last, height = _best_strip(cores, first, width)
        widths = [math.ceil(cores[i] / height) for i in range(first, last)]
        if y + height > rows:
            return None
        x = 0 if to_right else width
        for extent in widths:
            x = x if to_right else x - extent
            placed.append(Rectangle(x, y, extent, height))
            x = x + extent if to_right else x
        y, first, to_right = y + height, last, not to_right
    return placed


def _best_strip(cores: Sequence[int], first: int, width: int) -> tuple[int, int]:
    """How many layers the next strip takes, and its height: layers are added while that makes them squarer."""
    best: tuple[float, int, int] | None = None
    total = 0
    for last in range(first + 1, len(cores) + 1):
        total += cores[last - 1]
        height = _height(cores[first:last], total, width)
        extents = [math.ceil(c / height) for c in cores[first:last]]
        # The mean distance of the rectangles from squares, times the share of the strip that stays empty.
        shape = sum(max(e / height, height / e) for e in extents) / len(extents)
        waste = width * height / max(total, 1)
        if best is None or shape * waste < best[0]:
            best = (shape * waste, last, height)
        elif last - first > 8 and shape * waste > 4 * best[0]:
            break
        if last - first >= width:
            break
    assert best is not None
    return best[1], best[2]


def _height(cores: Sequence[int], total: int, width: int) -> int:
    """The least height at which layers, each rounded up to whole columns, fit side by side."""
    height = max(1, math.ceil(total / width))
    while sum(math.ceil(c / height) for c in cores) > width:
        height += 1
    return height
