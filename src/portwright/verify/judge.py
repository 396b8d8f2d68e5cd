"""Decides whether two scripts compute the same, with as few runs as that takes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from portwright.errors import PortwrightError
from portwright.verify.compare import Comparison, compare
from portwright.verify.diagnose import first_difference
from portwright.verify.difference import Difference
from portwright.verify.launch import ScriptFailed
from portwright.verify.measure import EPSILON, QUANTITIES, epsilon
from portwright.verify.proof import Settled
from portwright.verify.recording import Recording
from portwright.verify.runs import Dropout, Runs
from portwright.verify.tolerance import NOISE_FACTOR

DropoutChoice = Literal["auto", "keep", "off"]
DROPOUTS: tuple[DropoutChoice, ...] = ("auto", "keep", "off")
# Beyond so many times its bound a distance is no rounding, and both need not be run again to know.
_CLEAR = 100.0
# Where a rounding grows to more than this, agreement within it says little: rounding itself has to be made smaller.
_VAGUE = 0.01
_CLEAN = 1e-9  # distances in float64 of scripts that really compute in it
_NO_CAST = 1e-5  # more than a cast to float32 on the way can do to the first loss
_NUMBERS = frozenset({"batch", "dropout", "output", "loss", "gradient", "update", "buffer"})


@dataclass
class Judgement:
    """A verdict with the comparison that it was read from."""

    comparison: Comparison | None  # None where the port failed before a step
    difference: Difference | None
    dropout: Dropout = "drawn"
    settled_by: Settled | None = None
    in_float64: Comparison | None = None
    crash: ScriptFailed | None = None
    notes: list[str] = field(default_factory=list)


def judge(runs: Runs, dropout: DropoutChoice = "auto") -> Judgement:
    """Runs both scripts, and again where a difference may be chance (dropout) or rounding (noise, float64)."""
    modes: list[Dropout] = {"auto": ["drawn", "off"], "keep": ["drawn"], "off": ["off"]}[dropout]  # type: ignore[assignment]
    for mode in modes:
        original = runs.original(mode)
        try:
            ported = runs.ported(mode)
        except ScriptFailed as error:
            return _crashed(error, mode)
        judgement = _judge_mode(
            runs, original, ported, mode, is_last=mode == modes[-1] or not _draws(original, ported)
        )
        if judgement is not None:
            return judgement
    raise AssertionError("the last mode always judges")


def _draws(original: Recording, ported: Recording) -> bool:
    return any(draw.rate for r in (original, ported) for step in r.steps for draw in step.draws)


def _judge_mode(
    runs: Runs, original: Recording, ported: Recording, mode: Dropout, is_last: bool
) -> Judgement | None:
    comparison = compare(original, ported)
    difference = first_difference(comparison)
    if difference is None:
        is_same = all(not h.measure.distance for h in comparison.held)
        return Judgement(comparison, None, mode, "identical" if is_same else "dtype")
    if _is_exact(difference, mode):
        return Judgement(comparison, difference, mode)
    if not is_last:
        return None  # masks may have been drawn in another order: again without them
    noted = Judgement(comparison, difference, mode)
    try:
        comparison = compare(original, ported, runs.original(mode, perturb=_rounding(original)))
    except PortwrightError as error:
        noted.notes.append(f"The noise of the original could not be measured: {error}")
    noted.comparison, noted.difference = comparison, first_difference(comparison)
    if noted.difference is None:
        noted.settled_by = "noise"
        if _vague_steps(comparison):
            _confirm_in_float64(runs, mode, noted)
        return noted
    if not _is_exact(noted.difference, mode) and not _is_clear(comparison, noted.difference):
        _ask_float64(runs, mode, noted)
    return noted


def _is_exact(difference: Difference, mode: Dropout) -> bool:
    """Whether no rounding and no drawing can have made it: then nothing needs to be run again."""
    return difference.quantity not in _NUMBERS or (difference.quantity == "dropout" and mode == "off")


def _is_clear(comparison: Comparison, difference: Difference) -> bool:
    return any(h.share > _CLEAR for h in comparison.beyond(difference.step))


def _rounding(recording: Recording) -> float:
    """One rounding of the coarsest dtype that is trained."""
    sizes = [epsilon(t.dtype) for t in recording.tensors if t.kind == "parameter"]
    return max(sizes, default=EPSILON["float32"])


def _in_float64(runs: Runs, mode: Dropout, noted: Judgement) -> Comparison | None:
    """Both runs again in float64; tolerances stay those of float32, since a script may well cast to it, which is no fault."""
    try:
        original, ported = runs.original(mode, "float64"), runs.ported(mode, "float64")
        again = compare(original, ported)
        if first_difference(again) is not None:  # training may amplify even these roundings
            again = compare(original, ported, runs.original(mode, "float64", perturb=EPSILON["float64"]))
    except PortwrightError as error:
        noted.notes.append(f"Could not be repeated in float64: {error}")
        return None
    noted.in_float64 = again
    return again


def _vague_steps(comparison: Comparison) -> list[int]:
    """Steps in which the bound of a loss or gradient says little.

    Updates are left out: Adam makes large ones of gradients that are nothing but rounding, and they reach no output.
    """
    telling = ("loss", "gradient")
    return [
        h.measure.step for h in comparison.held if h.bound.value > _VAGUE and h.measure.quantity in telling
    ]


def _note_where_vague(comparison: Comparison | None, noted: Judgement, where: str) -> None:
    vague = _vague_steps(comparison) if comparison else []
    if vague:
        noted.notes.append(
            f"From step {min(vague)} on one rounding in the original's weights{where} moves some of its gradients by more than "
            f"{_VAGUE / NOISE_FACTOR:.1%} of their size: agreement there says little."
        )


def _ask_float64(runs: Runs, mode: Dropout, noted: Judgement) -> None:
    """Whether a difference is a fault: rounding all but vanishes in float64, and a fault stays as it is."""
    again = _in_float64(runs, mode, noted)
    if again is None:
        return
    found = first_difference(again)
    if found is None or not (_persists(noted, again) or _is_clean_until(again, found)):
        noted.difference, noted.settled_by = None, "float64"
        _note_where_vague(again, noted, ", in float64,")
    else:
        noted.difference = found


def _confirm_in_float64(runs: Runs, mode: Dropout, noted: Judgement) -> None:
    """Whether agreement within a large noise is agreement: then it is close in float64."""
    again = _in_float64(runs, mode, noted)
    found = first_difference(again) if again else None
    if again is not None and found is None:
        noted.settled_by = "float64"
        _note_where_vague(again, noted, ", in float64,")
    elif again is not None and found is not None and _is_clean_until(again, found):
        noted.difference, noted.settled_by = found, None
    else:
        _note_where_vague(noted.comparison, noted, "")


def _is_clean_until(again: Comparison, found: Difference) -> bool:
    """Whether all that comes before a difference agrees as only float64 can: then no cast on the way has made it."""
    before = [h.measure.distance for step in range(1, found.step) for h in again.at(step)]
    for quantity in QUANTITIES[: {"gradient": 1, "update": 2, "buffer": 3}.get(found.quantity, 0)]:
        before += [h.measure.distance for h in again.at(found.step, quantity)]
    if not before:
        return any(h.measure.distance > _NO_CAST for h in again.beyond(found.step))
    return statistics.median(before) < _CLEAN


def _persists(noted: Judgement, again: Comparison) -> bool:
    """Whether what was beyond its bound is still about as large in float64, and so no rounding."""
    assert noted.comparison is not None
    assert noted.difference is not None
    step = noted.difference.step
    before = {(h.measure.quantity, h.measure.name): h.measure.distance for h in noted.comparison.beyond(step)}
    now = {(h.measure.quantity, h.measure.name): h.measure.distance for h in again.at(step)}
    return any(
        now.get(key, 0.0) > 0.1 * distance for key, distance in before.items() if math.isfinite(distance)
    )


def _crashed(error: ScriptFailed, mode: Dropout) -> Judgement:
    last = next((line for line in reversed(error.tail.splitlines()) if line.strip()), "")
    difference = Difference(
        error.num_steps + 1,
        "crash",
        None,
        error.message,
        "runs",
        last or "fails",
        diagnosis="crash",
    )
    return Judgement(None, difference, mode, crash=error)
