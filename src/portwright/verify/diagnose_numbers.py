"""Diagnoses gradients and updates that differ. Sketches are linear, so they show sums and multiples of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from portwright.verify.measure import Vector, change, norm, weights_before
from portwright.verify.recording import Recording

_EXPLAINED = 0.02  # largest share of a difference that a diagnosis may leave unexplained
_NOT_CLEARED = (
    "The port's gradient is the original's plus that of the step before: gradients are not cleared between the "
    "steps (zero_grad)."
)
_LOOKS = {"update": change, "weights before": weights_before}


def _stacked(recording: Recording, what: str, step: int, names: Sequence[str]) -> Vector:
    """Concatenates the sketches of tensors; zeros where a sketch is missing."""
    look = _LOOKS.get(what)
    parts = []
    for name in names:
        found = recording.sketch(what, step, name) if look is None else look(recording, step, name)
        parts.append(np.zeros(_size(recording)) if found is None else found)
    return np.concatenate(parts) if parts else np.zeros(1)


def _size(recording: Recording) -> int:
    return next((len(v) for v in recording.arrays.values()), 1)


def factor(mine: Vector, theirs: Vector) -> float | None:
    """The factor c with `theirs` = c * `mine`, or None if `theirs` is no such multiple."""
    square = float(mine @ mine)
    if not square or not np.isfinite(theirs).all():
        return None
    c = float(mine @ theirs) / square
    left = norm(theirs - c * mine)
    return c if left <= _EXPLAINED * norm(theirs - mine) and left <= 0.01 * norm(theirs) else None


def scale_of(
    what: str, original: Recording, ported: Recording, step: int, names: Sequence[str]
) -> float | None:
    return factor(_stacked(original, what, step, names), _stacked(ported, what, step, names))


def diagnose_gradient(
    original: Recording, ported: Recording, step: int, beyond: Mapping[str, float], order: Sequence[str]
) -> tuple[str, str, str]:
    """A word, a sentence and the culprit for gradients that differ though the loss does not.

    `beyond` has the bound of each gradient that differs; `order` is that of the forward pass. The backward pass runs
    in reverse, so the culprit is the last one in that order.
    """
    names = [n for n in order if n in beyond]
    mine, theirs = (_stacked(r, "gradient", step, order) for r in (original, ported))
    if step > 1:
        before = _stacked(ported, "gradient", step - 1, order)
        if norm(theirs - mine - before) <= _EXPLAINED * norm(theirs - mine):
            return "zero-grad", _NOT_CLEARED, names[-1]
    c, odd = 1.0, names
    if len(names) >= len(order) / 2:
        c, odd = _odd_ones(original, ported, step, beyond, names)
    if not odd:
        return *_scaled_gradient(original, step, order, c), names[-1]
    culprit = odd[-1]
    if not norm(ported.sketch("gradient", step, culprit)):
        lacking = [n for n in odd if not norm(ported.sketch("gradient", step, n))]
        return *_without_gradient(ported, step, lacking), culprit
    if not ported.steps[step - 1].zeroed and original.steps[step - 1].zeroed:
        return "zero-grad", "The port does not clear its gradients before this step (zero_grad).", culprit
    return (
        "backward",
        "The loss is the same and the gradient is not: something on the way back differs, such as detach(), a hook, "
        "clipping by value or a parameter used in another place.",
        culprit,
    )


def _odd_ones(
    original: Recording, ported: Recording, step: int, beyond: Mapping[str, float], names: Sequence[str]
) -> tuple[float, list[str]]:
    """The factor that most gradients share, as after clipping by norm, and the gradients that it does not explain."""
    pairs = {n: [_stacked(r, "gradient", step, [n]) for r in (original, ported)] for n in names}
    factors = {n: float(a @ b) / float(a @ a) if a.any() else 0.0 for n, (a, b) in pairs.items()}

    def odd(c: float) -> list[str]:
        return [
            n
            for n, (a, b) in pairs.items()
            if norm(b - c * a) > 2 * beyond[n] * max(norm(a), norm(b)) + _EXPLAINED * abs(1 - c) * norm(a)
        ]

    # The factor that explains most gradients; among equals that of the last, which the backward pass computes first.
    best = min((c for n in reversed(names) if (c := factors[n]) > 0), key=lambda c: len(odd(c)), default=1.0)
    return best, odd(best)


def _without_gradient(ported: Recording, step: int, names: list[str]) -> tuple[str, str]:
    given = {n for group in ported.steps[step - 1].groups for n in group.parameters}
    own_names = {m.original: m.ported for m in ported.matches}
    frozen = {t.name for t in ported.tensors if not t.trained}
    if given and not given.intersection(names):
        return "not-updated", "The port's optimizer is not given it, so that it keeps its initial values."
    if all(set(own_names.get(n, (n,))) & frozen for n in names):
        return (
            "frozen",
            "It has no gradient in the port, where requires_grad is False: the port does not train it.",
        )
    return "detached", (
        "No gradient reaches it in the port: look for detach(), no_grad(), .data, .item() or a branch that is left out."
    )


def _scaled_gradient(original: Recording, step: int, names: Sequence[str], c: float) -> tuple[str, str]:
    norms = [norm(_stacked(original, "gradient", s.index, names)) for s in original.steps]
    whole = is_whole(c) or (c > 0 and is_whole(1 / c))
    # With clipping lost, the original's norms lie near one limit (sketches are estimates), and the port's lies above.
    limit, here = max(norms), norms[step - 1]
    at_limit = sum(n >= 0.88 * limit for n in norms) >= 3 and here >= 0.88 * limit
    if at_limit and c * here > 1.05 * limit and not whole:
        return "clipping", (
            f"All gradients are {c:.4g} times the original's, whose norm never goes beyond about {limit:.2g}: "
            "gradient clipping is lost or its limit is another one."
        )
    return "accumulation" if whole else "gradient-scale", (
        f"All gradients are {c:.6g} times the original's: look at clipping, at what the loss is divided by before "
        "backward() (gradient accumulation, loss scaling) and at how many backward() calls make a step."
    )


def is_whole(value: float) -> bool:
    """Whether a factor is a whole number above 1, such as a number of samples or of accumulated batches."""
    return value > 1.5 and math.isclose(value, round(value), rel_tol=1e-4)


def diagnose_update(
    original: Recording, ported: Recording, step: int, names: Sequence[str]
) -> tuple[str, str]:
    """A word and a sentence for weights whose updates differ though their gradients agree."""
    still = [n for n in names if not norm(change(ported, step, n)) and norm(change(original, step, n))]
    if len(still) == len(names):
        return (
            "not-updated",
            "The port's step does not change it: the optimizer was not given it, or it was frozen or restored.",
        )
    mine, theirs = (_stacked(r, "update", step, names) for r in (original, ported))
    c = factor(mine, theirs)
    if c is not None:
        return "learning-rate", f"Its change is {c:.6g} times the original's, as with another learning rate."
    difference = theirs - mine
    share = _projected(difference, _stacked(original, "weights before", step, names))
    if share is not None:
        return "weight-decay", (
            f"The changes differ by {share:.4g} times the weights themselves, as with another weight decay."
        )
    if step > 1:
        momentum = _projected(difference, _stacked(original, "update", step - 1, names))
        if momentum is not None:
            return "momentum", (
                f"The changes differ by {momentum:.4g} times the change of the step before, as with another momentum."
            )
    return (
        "update-rule",
        "Gradient and options are the same, and the change is not: the update is computed otherwise.",
    )


def _projected(difference: Vector, along: Vector) -> float | None:
    """The factor by which `difference` is a multiple of `along`, or None if it is none."""
    square = float(along @ along)
    if not square:
        return None
    share = float(difference @ along) / square
    return share if norm(difference - share * along) <= 0.1 * norm(difference) else None
