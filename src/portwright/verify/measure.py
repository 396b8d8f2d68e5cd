"""Measures the distances between two recordings, tensor by tensor and step by step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
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
