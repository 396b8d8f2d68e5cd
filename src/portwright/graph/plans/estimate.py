"""Layers on a rectangular fabric of cores, and estimated numbers: each with its formula, its inputs and its possible error.

Each layer has one rectangle, none over another, in the order of the data. Layers fill strips from left to right, and the next
strip from right to left, so that layers that exchange data lie side by side. The height of a strip is chosen so that its
rectangles are nearly square.

What is said of a CS-2 rests on the one public compile of a model for it. PSC's page "Compilation Key Metrics to Share" shows both
figures under its PyTorch heading, for model zoo 1.6's fc_mnist with its own params.yaml: 784 inputs, ten hidden layers of 50, ten
classes. (Under TensorFlow, whose fc_mnist has hidden layers of 500 and 300 and so 8.4 times the work, it shows the same 674 cycles
and no utilization.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from portwright import __version__


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


MADE_BY = f"portwright {__version__}, not the vendor's compiler"
SOURCE = "PSC Neocortex, Compilation Key Metrics to Share: fc_mnist of model zoo 1.6, PyTorch"


@dataclass(frozen=True)
class Estimate:
    """One estimated number."""

    value: float | int
    unit: str
    formula: str
    inputs: Mapping[str, Any]
    interval: tuple[float | int, float | int]
    interval_from: str  # how the interval was derived
    sources: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "unit": self.unit,
            "estimated": True,
            "formula": self.formula,
            "inputs": dict(self.inputs),
            "interval": list(self.interval),
            "interval_from": self.interval_from,
            "sources": list(self.sources),
            "made_by": MADE_BY,
        }


@dataclass(frozen=True)
class Reference:
    """A published compile: what was compiled, and what the vendor's compiler said."""

    layers: tuple[int, ...]  # sizes of a fully connected network
    utilization: float  # of the usable fabric
    cycles: int  # a sample, with the pipeline full
    fabric: tuple[int, int]

    @property
    def products(self) -> float:
        """Operations in matrix products of one training sample, without the gradient of the input."""
        weights = [a * b for a, b in zip(self.layers, self.layers[1:], strict=False)]
        return 2.0 * (2 * sum(weights) + sum(weights[1:]))

    @property
    def cores(self) -> float:
        return self.utilization * math.prod(self.fabric)

    @property
    def work_per_core(self) -> float:
        return self.products / self.cores


FC_MNIST = Reference((784, *[50] * 10, 10), 0.0588006479419213, 674, (757, 996))

_SPREAD = 2.0  # at the calibration point itself: which of two networks was compiled is not certain


def wanted_cores(products: float) -> float:
    """Cores that a model would get with room enough: as much work a core as in the published compile."""
    return products / FC_MNIST.work_per_core


def estimate_utilization(
    products: float, shares: Shares, rectangles: Sequence[Rectangle], fabric: tuple[int, int]
) -> Estimate:
    available = math.prod(fabric)
    value = min(1.0, round(shares.total / available, 16))
    decades = abs(math.log10(products / FC_MNIST.products)) if products > 0 else 6.0
    factor = _SPREAD ** (1 + decades)
    return Estimate(
        value=value,
        unit="fraction of the usable fabric",
        formula=(
            "sum over layers of max(cores for its work, cores for its memory) / usable cores, at most 1; cores for all work = "
            "utilization * usable cores of the published compile * operations in products a sample / those of the published "
            "compile, a layer's in proportion to its work; cores for memory = bytes / bytes a core"
        ),
        inputs={
            "product_flops_per_sample": products,
            "cores_for_work": wanted_cores(products),
            "cores_for_memory": shares.least,
            "cores": shares.total,
            "cores_of_rectangles": sum(rectangle.area for rectangle in rectangles),
            "usable_cores": available,
            **_published(),
        },
        interval=(min(value, max(shares.least / available, value / factor)), min(1.0, value * factor)),
        interval_from=(
            f"one published compile: a factor of {_SPREAD:g} there, and as much again for each power of ten of work away from it "
            f"({decades:.2f}); never below what memory takes nor above the whole fabric"
        ),
        sources=(SOURCE,),
    )


def estimate_cycles(products: float, wanted: float, shares: Shares) -> Estimate:
    """`wanted` are the cores that the work would take at the published compile's work a core."""
    ratio = max(1.0, shares.crowding)
    return Estimate(
        value=round(FC_MNIST.cycles * math.sqrt(ratio)),
        unit="cycles a sample, with the pipeline full",
        formula=(
            "cycles of the published compile * sqrt(max(1, work a core / that of the published compile)): the geometric mean of "
            "two limits, cycles that do not grow with the work of a core and cycles that grow with all of it"
        ),
        inputs={
            "product_flops_per_sample": products,
            "cores_for_work": wanted,
            "cores": shares.total,
            "work_per_core_ratio": ratio,
            **_published(),
        },
        interval=(math.floor(FC_MNIST.cycles / _SPREAD), math.ceil(FC_MNIST.cycles * ratio * _SPREAD)),
        interval_from=(
            f"the two limits, {FC_MNIST.cycles:g} cycles whatever a core has to do and {FC_MNIST.cycles:g} cycles times the work "
            f"of a core, and a factor of {_SPREAD:g} for the published compile itself"
        ),
        sources=(SOURCE,),
    )


def _published() -> Mapping[str, Any]:
    return {
        "published": {
            "network": "-".join(map(str, FC_MNIST.layers)),
            "total_utilization": FC_MNIST.utilization,
            "estimated_deltat": FC_MNIST.cycles,
            "product_flops_per_sample": FC_MNIST.products,
        }
    }
