"""Numbers that nobody measured: each with its formula, what went into it and how far off it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from portwright import __version__

MADE_BY = f"portwright {__version__}, not the vendor's compiler"


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
