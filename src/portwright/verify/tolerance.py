"""Bounds for the distance of two runs that compute the same: from the dtype, or from measured rounding noise.

Two correct programs differ by rounding only, and training amplifies that: little in a small network, a thousandfold in a
deep one with batch normalisation. So a fixed tolerance is too wide or too narrow. A narrow one, from the dtype
alone, decides the plain cases. Otherwise the original is run again with its initial weights off by one rounding, and the
distance that this causes sets the bound, tensor by tensor and step by step.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from portwright.verify.measure import Measure, Quantity, epsilon

Decider = Literal["dtype", "noise"]

# Roundings in one step, by quantity: sums over a batch for a loss, over the network and back for a gradient.
_ROUNDINGS: dict[Quantity, float] = {"loss": 4, "gradient": 32, "update": 64, "buffer": 32}
_SHARE_OF_TYPICAL = 0.1
# A real change of this relative size must be seen: agreement within a wider bound proves nothing.
VAGUE = 0.01
NOISE_FACTOR = 10.0  # a port rounds in every op, the perturbed run only in its weights


def base_bound(quantity: Quantity, step: int, dtype: str) -> float:
    """What rounding alone can do in a well-behaved network; it grows with each step."""
    return _ROUNDINGS[quantity] * epsilon(dtype) * step


@dataclass(frozen=True)
class Bound:
    """The largest distance that still counts as equal, and what set it."""

    value: float
    decided_by: Decider


@dataclass
class Noise:
    """The distances that one rounding in the initial weights causes in the original."""

    relative: float  # size of the perturbation
    _own: dict[tuple[Quantity, str], dict[int, float]] = field(default_factory=dict)
    _typical: dict[Quantity, dict[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, measures: Iterable[Measure], relative: float) -> Noise:
        noise = cls(relative)
        by_step: defaultdict[tuple[Quantity, int], list[float]] = defaultdict(list)
        for m in sorted(measures, key=lambda m: m.step):
            # The largest so far, since a tensor may come close to the original again by chance.
            own = noise._own.setdefault((m.quantity, m.name), {})
            own[m.step] = max(m.distance, max(own.values(), default=0.0))
            by_step[m.quantity, m.step].append(own[m.step])
        for (quantity, step), values in by_step.items():
            noise._typical.setdefault(quantity, {})[step] = statistics.median(values)
        return noise

    def at(self, quantity: Quantity, name: str, step: int) -> float:
        """The tensor's own noise, but at least a share of what is typical for its quantity."""
        own = _last(self._own.get((quantity, name), {}), step)
        return max(own, _SHARE_OF_TYPICAL * _last(self._typical.get(quantity, {}), step))


def _last(by_step: dict[int, float], step: int) -> float:
    known = [s for s in by_step if s <= step]
    return by_step[max(known)] if known else 0.0


def bound_of(measure: Measure, dtype: str, noise: Noise | None) -> Bound:
    """The bound for one measure; rounding of the stored values (`measure.rounding`) is added to that from the dtype."""
    base = base_bound(measure.quantity, measure.step, dtype) + measure.rounding
    measured = NOISE_FACTOR * noise.at(measure.quantity, measure.name, measure.step) if noise else 0.0
    return Bound(base, "dtype") if base >= measured else Bound(measured, "noise")
