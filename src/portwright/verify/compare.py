"""Compares two recordings: every distance with its bound, and what has to agree exactly."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from portwright.verify.compare_exact import (
    InitialDifference,
    LostParameter,
    OptionDifference,
    dropped,
    initial_differences,
    lost_parameters,
    option_differences,
    same_batch,
)
from portwright.verify.measure import (
    SHARE_OF_ALL,
    TELLING,
    VAGUE,
    Bound,
    Measure,
    Noise,
    Quantity,
    bound_of,
    measure,
)
from portwright.verify.recording import Recording


@dataclass(frozen=True)
class CheckedDistance:
    """One distance with the bound that it must not exceed."""

    measure: Measure
    bound: Bound

    @property
    def is_beyond(self) -> bool:
        return self.measure.distance > self.bound.value

    @property
    def share(self) -> float:
        """Distance divided by bound: above 1 the bound is exceeded."""
        return self.measure.distance / self.bound.value if self.bound.value else 0.0


@dataclass
class StepFacts:
    """What has to agree exactly in one step."""

    step: int
    same_batch: bool
    dropped: tuple[dict[float, int], dict[float, int]]
    options: list[OptionDifference]

    @property
    def same_dropout(self) -> bool:
        return self.dropped[0] == self.dropped[1]


@dataclass
class Comparison:
    """Everything that was compared, over the steps that both scripts made."""

    original: Recording
    ported: Recording
    checked: list[CheckedDistance]
    facts: list[StepFacts]
    lost: list[LostParameter]
    initial: list[InitialDifference]
    noise: Noise | None = None
    perturbed: Recording | None = None
    _by_step: dict[int, list[CheckedDistance]] = field(default_factory=dict)
    _sizes: dict[tuple[int, Quantity], float] = field(default_factory=dict)  # norms over all tensors

    def __post_init__(self) -> None:
        squares: defaultdict[tuple[int, Quantity], float] = defaultdict(float)
        for checked in self.checked:
            self._by_step.setdefault(checked.measure.step, []).append(checked)
            squares[checked.measure.step, checked.measure.quantity] += checked.measure.size**2
        self._sizes = {key: math.sqrt(square) for key, square in squares.items()}

    @property
    def steps(self) -> int:
        return min(len(self.original.steps), len(self.ported.steps))

    def at(self, step: int, quantity: Quantity | None = None) -> list[CheckedDistance]:
        return [h for h in self._by_step.get(step, []) if quantity in (None, h.measure.quantity)]

    def beyond(self, step: int, quantity: Quantity | None = None) -> list[CheckedDistance]:
        return [h for h in self.at(step, quantity) if h.is_beyond]

    def worst(self, quantity: Quantity, step: int | None = None) -> CheckedDistance | None:
        """The distance with the largest share of its bound, in one step or in all."""
        among = (
            self.at(step, quantity) if step else [h for h in self.checked if h.measure.quantity == quantity]
        )
        return max(among, key=lambda h: (h.share, h.measure.distance), default=None)

    def weight(self, checked: CheckedDistance) -> float:
        """How much a distance matters, near 0 for a tensor far smaller than the others (such as Adam's update for a zero gradient)."""
        size = checked.measure.size
        least = SHARE_OF_ALL * self._sizes[checked.measure.step, checked.measure.quantity]
        return size / math.hypot(size, least) if size and math.isfinite(least) else 1.0

    def doubtful(self) -> list[CheckedDistance]:
        """Distances so large that a real change could hide in them, even if within their bound."""
        return [h for h in self.checked if h.measure.distance * self.weight(h) > VAGUE]

    def largest_bound(self) -> tuple[float, Quantity] | None:
        """The largest distance that would still have counted as equal, and of what."""
        among = [(h.bound.value * self.weight(h), h.measure.quantity) for h in self.checked]
        return max(among, default=None)

    def no_number(self) -> CheckedDistance | None:
        """The first loss or gradient that is NaN or infinite in both runs, which shows no agreement."""
        return next(
            (h for h in self.checked if h.measure.is_no_number and h.measure.quantity in TELLING), None
        )

    @property
    def numbers_agree(self) -> bool:
        return not any(h.is_beyond for h in self.checked)


def compare(original: Recording, ported: Recording, perturbed: Recording | None = None) -> Comparison:
    """Compares the port with the original; a perturbed run of the original widens the bounds to what rounding does there."""
    dtypes = {t.name: t.dtype for t in original.tensors}
    noise = Noise.of(measure(original, perturbed), perturbed.perturbed) if perturbed else None
    loss_dtypes = {s.index: s.loss_dtype for s in original.steps}
    checked = []
    for each in measure(original, ported):
        dtype = dtypes.get(each.name, "float32") if each.name else loss_dtypes[each.step]
        # the script may still cast to float32 itself
        if original.dtype == "float64":
            dtype = "float32"
        checked.append(CheckedDistance(each, bound_of(each, dtype, noise)))
    moved = {s.index: s for s in perturbed.steps} if perturbed else {}
    facts = [
        StepFacts(
            mine.index,
            same_batch(mine, theirs, moved.get(mine.index)),
            (dropped(mine.draws), dropped(theirs.draws)),
            option_differences(mine, theirs, ported),
        )
        for mine, theirs in zip(original.steps, ported.steps, strict=False)
    ]
    return Comparison(
        original,
        ported,
        checked,
        facts,
        lost_parameters(original, ported),
        initial_differences(original, ported),
        noise,
        perturbed,
    )
