"""Measures the distances between two recordings, tensor by tensor and step by step, and bounds them for runs that compute the same.

Two correct programs differ by rounding only, and training amplifies that: little in a small network, a thousandfold in a
deep one with batch normalisation. So a fixed tolerance is too wide or too narrow. A narrow one, from the dtype
alone, decides the plain cases. Otherwise the original is run again with its initial weights off by one rounding, and the
distance that this causes sets the bound, tensor by tensor and step by step.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from portwright.verify.recording import Recording, Step, Tensor

Quantity = Literal["loss", "gradient", "update", "buffer"]
TELLING: tuple[Quantity, ...] = ("loss", "gradient")
QUANTITIES: tuple[Quantity, ...] = ("loss", "gradient", "update", "buffer")
Vector = npt.NDArray[np.float64]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Part of the norm of all gradients added to each scale: a true gradient of zero (a bias before batch norm) is all rounding.
SHARE_OF_ALL = 0.01
_INFINITE = 1e300  # larger than any bound, and still a number in JSON


@dataclass(frozen=True)
class Measure:
    """How far one number or tensor of one step is from the original's, relative to its size there."""

    step: int
    quantity: Quantity
    name: str  # of the tensor; "" for the loss
    distance: float
    original: float  # the loss, or the norm of the tensor
    ported: float
    rounding: float = 0.0  # part of the distance that storing the values can cause

    @property
    def size(self) -> float:
        return max(abs(self.original), abs(self.ported))

    @property
    def is_no_number(self) -> bool:
        return not math.isfinite(self.original) and not math.isfinite(self.ported)


def epsilon(dtype: str) -> float:
    """The rounding of a dtype; other dtypes (integers, quantised) count as float32."""
    return EPSILON.get(dtype.removeprefix("torch."), EPSILON["float32"])


def measure(original: Recording, other: Recording) -> list[Measure]:
    """All distances over the steps that both recordings have, in order."""
    count = min(len(original.steps), len(other.steps))
    typical_loss = statistics.median([abs(_total(s)) for s in original.steps[:count]] or [0.0])
    absent = set(other.missing)
    kept = [t for t in original.tensors if t.name not in absent]
    found: list[Measure] = []
    for mine, theirs in zip(original.steps[:count], other.steps[:count], strict=True):
        found += _losses(mine, theirs, typical_loss)
        found += _gradients(original, other, mine.index, [t.name for t in kept])
        found += _changes(original, other, mine.index, kept)
    return found


def _total(step: Step) -> float:
    return math.fsum(step.losses) if all(map(math.isfinite, step.losses)) else math.nan


def _losses(mine: Step, theirs: Step, typical: float) -> Iterator[Measure]:
    """The worst distance of the losses of a step; sums are compared where the numbers of backward() calls differ."""
    if len(mine.losses) == len(theirs.losses):
        pairs = list(zip(mine.losses, theirs.losses, strict=True))
    else:
        pairs = [(_total(mine), _total(theirs))]
    worst: Measure | None = None
    for a, b in pairs:
        if math.isfinite(a) and math.isfinite(b):
            scale = max(abs(a), abs(b), 0.01 * typical if math.isfinite(typical) else 0.0)
            distance = abs(a - b) / scale if scale else 0.0
        else:  # both NaN, or the same infinity: no distance
            distance = 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else _INFINITE
        if worst is None or distance > worst.distance:
            worst = Measure(mine.index, "loss", "", distance, a, b)
    if worst is not None:
        yield worst


def _gradients(original: Recording, other: Recording, step: int, names: list[str]) -> Iterator[Measure]:
    pairs = {n: (original.sketch("gradient", step, n), other.sketch("gradient", step, n)) for n in names}
    whole = math.sqrt(sum(norm(a) ** 2 for a, _ in pairs.values() if a is not None))
    for name, (a, b) in pairs.items():
        if a is None and b is None:
            continue
        yield _vectors(step, "gradient", name, a, b, SHARE_OF_ALL * whole)


def _changes(original: Recording, other: Recording, step: int, tensors: list[Tensor]) -> Iterator[Measure]:
    """Compares what the step added to each tensor, since a wrong learning rate hardly shows in the weights themselves."""
    for tensor in tensors:
        name = tensor.name
        a, b = change(original, step, name), change(other, step, name)
        if a is None and b is None:
            continue
        here = original.sketch("weight", step, name)
        quantity: Quantity = "buffer" if tensor.kind == "buffer" else "update"
        measured = _vectors(step, quantity, name, a, b, 0.0)
        size = max(measured.original, measured.ported)
        rounding = 2 * epsilon(tensor.dtype) * norm(here) / size if here is not None and size else 0.0
        yield Measure(
            step, quantity, name, measured.distance, measured.original, measured.ported, min(rounding, 0.5)
        )


def _vectors(
    step: int, quantity: Quantity, name: str, a: Vector | None, b: Vector | None, least: float
) -> Measure:
    mine, theirs = norm(a), norm(b)
    zero = np.zeros_like(a if a is not None else b)
    difference = norm((zero if a is None else a) - (zero if b is None else b))
    if not math.isfinite(difference):
        same = not math.isfinite(mine) and not math.isfinite(theirs)
        return Measure(step, quantity, name, 0.0 if same else _INFINITE, mine, theirs)
    scale = math.hypot(max(mine, theirs), least)
    return Measure(step, quantity, name, difference / scale if scale else 0.0, mine, theirs)


def change(recording: Recording, step: int, name: str) -> Vector | None:
    """The sketch of what a step added to a tensor."""
    after, before = recording.sketch("weight", step, name), weights_before(recording, step, name)
    return None if after is None or before is None else after - before


def weights_before(recording: Recording, step: int, name: str) -> Vector | None:
    """The sketch before a step: after the last earlier step that recorded it, or initially."""
    for earlier in range(step - 1, 0, -1):
        found = recording.sketch("weight", earlier, name)
        if found is not None:
            return found
    return recording.sketch("initial", 0, name)


def norm(vector: Vector | None) -> float:
    return 0.0 if vector is None else float(np.linalg.norm(vector))


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
