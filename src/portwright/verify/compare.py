"""Two recordings held against each other: every distance with its bound, and what they had to agree on exactly."""

from __future__ import annotations

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
from portwright.verify.measure import Measure, Quantity, measure
from portwright.verify.recording import Recording
from portwright.verify.tolerance import Bound, Noise, bound_of


@dataclass(frozen=True)
class Held:
    """One distance beside its bound."""

    measure: Measure
    bound: Bound

    @property
    def is_beyond(self) -> bool:
        return self.measure.distance > self.bound.value

    @property
    def share(self) -> float:
        """The part of its bound that a distance takes: above 1 it is beyond."""
        return self.measure.distance / self.bound.value if self.bound.value else 0.0


@dataclass
class StepFacts:
    """What one step had to agree on exactly."""

    step: int
    same_batch: bool
    dropped: tuple[dict[float, int], dict[float, int]]
    options: list[OptionDifference]

    @property
    def same_dropout(self) -> bool:
        return self.dropped[0] == self.dropped[1]


@dataclass
class Comparison:
    """Everything that was held against each other, over the steps that both scripts made."""

    original: Recording
    ported: Recording
    held: list[Held]
    facts: list[StepFacts]
    lost: list[LostParameter]
    initial: list[InitialDifference]
    noise: Noise | None = None
    perturbed: Recording | None = None
    _by_step: dict[int, list[Held]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for held in self.held:
            self._by_step.setdefault(held.measure.step, []).append(held)

    @property
    def steps(self) -> int:
        return min(len(self.original.steps), len(self.ported.steps))

    def at(self, step: int, quantity: Quantity | None = None) -> list[Held]:
        return [h for h in self._by_step.get(step, []) if quantity in (None, h.measure.quantity)]

    def beyond(self, step: int, quantity: Quantity | None = None) -> list[Held]:
        return [h for h in self.at(step, quantity) if h.is_beyond]

    def worst(self, quantity: Quantity, step: int | None = None) -> Held | None:
        """The distance that takes most of its bound, of one step or of all."""
        among = self.at(step, quantity) if step else [h for h in self.held if h.measure.quantity == quantity]
        return max(among, key=lambda h: (h.share, h.measure.distance), default=None)

    @property
    def numbers_agree(self) -> bool:
        return not any(h.is_beyond for h in self.held)


def compare(original: Recording, ported: Recording, perturbed: Recording | None = None) -> Comparison:
    """Measures the port against the original; with a perturbed run of the original, against what rounding does there."""
    dtypes = {t.name: t.dtype for t in original.tensors}
    noise = Noise.of(measure(original, perturbed), perturbed.perturbed) if perturbed else None
    loss_dtypes = {s.index: s.loss_dtype for s in original.steps}
    held = []
    for each in measure(original, ported):
        dtype = dtypes.get(each.name, "float32") if each.name else loss_dtypes[each.step]
        if (
            original.dtype == "float64"
        ):  # run so to be judged, and a script may still cast to what it was written for
            dtype = "float32"
        held.append(Held(each, bound_of(each, dtype, noise)))
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
        held,
        facts,
        lost_parameters(original, ported),
        initial_differences(original, ported),
        noise,
        perturbed,
    )
