"""Decides whether two scripts compute the same, with as few runs as possible."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from portwright.errors import PortwrightError
from portwright.verify.compare import Comparison, compare
from portwright.verify.compare_run import Part, compare_runs
from portwright.verify.diagnose import first_difference
from portwright.verify.difference import Difference
from portwright.verify.launch import Dropout, Runs, ScriptFailed
from portwright.verify.measure import EPSILON, QUANTITIES, TELLING, VAGUE, epsilon
from portwright.verify.proof import Settled
from portwright.verify.recording import Recording

DropoutChoice = Literal["auto", "keep", "off"]
DROPOUTS: tuple[DropoutChoice, ...] = ("auto", "keep", "off")
# A distance of more than so many times its bound is no rounding, without another run.
_CLEARLY_BEYOND = 100.0
_CLOSE_IN_FLOAT64 = 1e-9  # largest typical distance of scripts that really compute in float64
_BEYOND_ANY_CAST = 1e-5  # distance of a first loss that no cast to float32 explains
_NUMBERS = frozenset({"batch", "dropout", "output", "loss", "gradient", "update", "buffer"})


@dataclass
class Judgement:
    """A verdict with the comparison that it is based on."""

    comparison: Comparison | None  # None where a program failed
    difference: Difference | None
    dropout: Dropout = "drawn"
    settled_by: Settled | None = None
    in_float64: Comparison | None = None
    crash: ScriptFailed | None = None  # of the port, or of the original where `unsure` says so
    unsure: str = ""  # why nobody can tell whether they are equal
    notes: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)  # comparison of the runs outside their steps


def judge(runs: Runs, dropout: DropoutChoice = "auto") -> Judgement:
    """Runs both scripts, and repeats them where a difference may be chance (dropout) or rounding (noise, float64)."""
    modes: list[Dropout] = {"auto": ["drawn", "off"], "keep": ["drawn"], "off": ["off"]}[dropout]  # type: ignore[assignment]
    for mode in modes:
        try:
            original = runs.original(mode)
        except ScriptFailed as error:
            where = "fails" if not error.is_refused else "cannot be recorded"
            return Judgement(None, None, mode, crash=error, unsure=f"the original {where}. {error.message}")
        try:
            ported = runs.ported(mode)
        except ScriptFailed as error:
            return _judge_crash(error, mode)
        draws = (draw for recording in (original, ported) for step in recording.steps for draw in step.draws)
        is_last = mode == modes[-1] or not any(draw.rate for draw in draws)
        judgement = _judge_mode(runs, original, ported, mode, is_last)
        if judgement is not None:
            _compare_outside_steps(runs, judgement, original, ported)
            return judgement
    raise AssertionError("the last mode always judges")


def _judge_mode(
    runs: Runs, original: Recording, ported: Recording, mode: Dropout, is_last: bool
) -> Judgement | None:
    comparison = compare(original, ported)
    difference = first_difference(comparison)
    if difference is None:
        is_same = all(not h.measure.distance for h in comparison.checked)
        judgement = Judgement(comparison, None, mode, "identical" if is_same else "dtype")
        if comparison.doubtful():  # the dtype of the weights is too coarse to see updates well
            _confirm_in_float64(runs, mode, judgement)
        return judgement
    if _is_exact(difference, mode):
        return Judgement(comparison, difference, mode)
    if not is_last:
        return None  # dropout masks may have been drawn in another order: repeat with dropout off
    judgement = Judgement(comparison, difference, mode)
    try:
        comparison = compare(original, ported, runs.original(mode, perturb=_rounding(original)))
    except PortwrightError as error:
        judgement.notes.append(f"The noise of the original could not be measured: {error}")
    judgement.comparison, judgement.difference = comparison, first_difference(comparison)
    if judgement.difference is None:
        judgement.settled_by = "noise"
        # A bound of a loss or gradient may be too wide to show agreement.
        vague = [h for h in comparison.checked if h.bound.value > VAGUE and h.measure.quantity in TELLING]
        if vague or comparison.doubtful():
            _confirm_in_float64(runs, mode, judgement)
        return judgement
    beyond = comparison.beyond(judgement.difference.step)
    is_clear = any(checked.share > _CLEARLY_BEYOND for checked in beyond)
    if not _is_exact(judgement.difference, mode) and not is_clear:
        _decide_in_float64(runs, mode, judgement)
    return judgement


def _is_exact(difference: Difference, mode: Dropout) -> bool:
    """Whether neither rounding nor random masks can have caused the difference."""
    return difference.quantity not in _NUMBERS or (difference.quantity == "dropout" and mode == "off")


def _rounding(recording: Recording) -> float:
    """The rounding error of the coarsest dtype among the parameters."""
    sizes = [epsilon(t.dtype) for t in recording.tensors if t.kind == "parameter"]
    return max(sizes, default=EPSILON["float32"])


def _in_float64(runs: Runs, mode: Dropout, judgement: Judgement) -> Comparison | None:
    """Repeats both runs in float64, with the tolerances of float32, since scripts may cast to it."""
    try:
        original, ported = runs.original(mode, "float64"), runs.ported(mode, "float64")
        again = compare(original, ported)
        if first_difference(again) is not None:  # training may amplify even these roundings
            again = compare(original, ported, runs.original(mode, "float64", perturb=EPSILON["float64"]))
    except PortwrightError as error:
        judgement.notes.append(f"Could not be repeated in float64: {error}")
        return None
    judgement.in_float64 = again
    return again


def _compare_outside_steps(runs: Runs, judgement: Judgement, original: Recording, ported: Recording) -> None:
    """Compares the runs outside their steps, and adds the first difference to the judgement."""
    judgement.parts = compare_runs(original, ported)
    if judgement.difference is None and any(part.state == "different" for part in judgement.parts):
        try:
            moved = runs.original(judgement.dropout, perturb=_rounding(original))
            judgement.parts = compare_runs(original, ported, moved)
        except PortwrightError as error:
            judgement.notes.append(
                f"What is beside the steps could not be held against a second run of the original: {error}"
            )
    judgement.unsure = _why_unsure(judgement)
    doubtful = next((part for part in judgement.parts if part.state == "cannot tell"), None)
    if not judgement.unsure and judgement.difference is None and doubtful is not None:
        judgement.unsure = f"the steps agree, but of {doubtful.what} nobody can tell: {doubtful.says}"
    different = next((part for part in judgement.parts if part.state == "different"), None)
    if judgement.difference is None and different is not None:
        steps = min(len(original.steps), len(ported.steps))
        judgement.difference = Difference(
            steps,
            "run",
            None,
            f"{different.what}: {different.says}",
            diagnosis=different.what.replace(" ", "-"),
        )


def _why_unsure(judgement: Judgement) -> str:
    """Why agreement proves nothing: values are NaN in both runs, or bounds too wide; "" where it does prove equality."""
    comparison = judgement.in_float64 if judgement.settled_by == "float64" else judgement.comparison
    if judgement.difference is not None or comparison is None:
        return ""
    failed = comparison.no_number()
    if failed is not None:
        what = "the loss" if failed.measure.quantity == "loss" else f"the gradient of {failed.measure.name}"
        return (
            f"from step {failed.measure.step} on {what} is not a number in both runs: that both fail alike does not show that "
            "they compute the same."
        )
    doubtful = comparison.doubtful()
    if not doubtful:
        return ""
    first = min(doubtful, key=lambda h: h.measure.step)
    name = f" of {first.measure.name}" if first.measure.name else ""
    source = (
        "storing the weights"
        if first.bound.decided_by == "dtype"
        else "one rounding in the original's weights"
    )
    return (
        f"at step {first.measure.step} the {first.measure.quantity}{name} is {first.measure.distance:.2g} apart. {source.capitalize()} "
        f"alone may do that (bound {first.bound.value:.2g}{', in float64' if judgement.settled_by == 'float64' else ''}), and a "
        "real change of that size cannot be told from it."
    )


def _decide_in_float64(runs: Runs, mode: Dropout, judgement: Judgement) -> None:
    """Decides in float64 whether a difference is real: rounding nearly vanishes there, a real difference stays."""
    again = _in_float64(runs, mode, judgement)
    if again is None:
        return
    found = first_difference(again)
    if found is None or not (_persists(judgement, again) or _is_clean_until(again, found)):
        judgement.difference, judgement.settled_by = None, "float64"
    else:
        judgement.difference = found


def _confirm_in_float64(runs: Runs, mode: Dropout, judgement: Judgement) -> None:
    """Confirms in float64 an agreement that holds only within large noise."""
    again = _in_float64(runs, mode, judgement)
    found = first_difference(again) if again else None
    if again is not None and found is None:
        judgement.settled_by = "float64"
    elif again is not None and found is not None and _is_clean_until(again, found):
        judgement.difference, judgement.settled_by = found, None


def _is_clean_until(again: Comparison, found: Difference) -> bool:
    """Whether everything before the difference agrees to float64 precision, so that no cast can have caused it."""
    before = [h.measure.distance for step in range(1, found.step) for h in again.at(step)]
    for quantity in QUANTITIES[: {"gradient": 1, "update": 2, "buffer": 3}.get(found.quantity, 0)]:
        before += [h.measure.distance for h in again.at(found.step, quantity)]
    if not before:
        return any(h.measure.distance > _BEYOND_ANY_CAST for h in again.beyond(found.step))
    return statistics.median(before) < _CLOSE_IN_FLOAT64


def _persists(judgement: Judgement, again: Comparison) -> bool:
    """Whether a distance beyond its bound stays about as large in float64, and so is not rounding."""
    assert judgement.comparison is not None
    assert judgement.difference is not None
    step = judgement.difference.step
    before = {
        (h.measure.quantity, h.measure.name): h.measure.distance for h in judgement.comparison.beyond(step)
    }
    now = {(h.measure.quantity, h.measure.name): h.measure.distance for h in again.at(step)}
    return any(
        now.get(key, 0.0) > 0.1 * distance for key, distance in before.items() if math.isfinite(distance)
    )


def _judge_crash(error: ScriptFailed, mode: Dropout) -> Judgement:
    if error.is_refused:
        return Judgement(
            None, None, mode, crash=error, unsure=f"the port cannot be recorded. {error.message}"
        )
    last = next((line for line in reversed(error.tail.splitlines()) if line.strip()), "")
    difference = Difference(
        error.num_steps + 1,
        "crash",
        None,
        error.message,
        "runs",
        last or "fails",
        diagnosis="crash",
        line=error.line,
    )
    return Judgement(None, difference, mode, crash=error)
