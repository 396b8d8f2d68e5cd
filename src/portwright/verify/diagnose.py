"""Finds the first difference of two runs, its likely cause, and describes it in plain words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from portwright.verify.compare import CheckedDistance, Comparison, StepFacts
from portwright.verify.compare_exact import lost_statistics, same_batch, same_values
from portwright.verify.diagnose_forward import Located, forward_order, locate
from portwright.verify.diagnose_numbers import diagnose_gradient, diagnose_update, is_whole, scale_of
from portwright.verify.difference import Difference, Where, count, listing, number
from portwright.verify.recording import Recording, Step, TensorDigest


def first_difference(comparison: Comparison) -> Difference | None:
    """The first cause in the first step that differs; None if no step does."""
    for step in range(1, comparison.steps + 1):
        found = _in_step(comparison, step)
        if found is not None:
            return found
    return _too_few_steps(comparison) or _statistics(comparison)


def _in_step(comparison: Comparison, step: int) -> Difference | None:
    facts = comparison.facts[step - 1]
    lost = _lost(comparison, step) or (_initial(comparison) if step == 1 else None)
    if lost is not None:
        return lost
    beyond = comparison.beyond(step)
    # Another batch or dropout that changes no number is no difference: the model may not use it.
    if beyond and not facts.same_batch:
        return _batch(comparison, step)
    if not facts.same_dropout and (beyond or comparison.ported.dropout == "off"):
        return _dropout(facts)
    forward = _forward(comparison, step)
    if forward is not None:
        return forward
    if comparison.beyond(step, "gradient"):
        return _gradient(comparison, step)
    return _optimizer(comparison, facts, bool(beyond)) or _update(comparison, step)


def _lost(comparison: Comparison, step: int) -> Difference | None:
    lost = [one for one in comparison.lost if one.step == step]
    if not lost:
        return None
    first = min(lost, key=lambda one: not one.in_original)
    names = tuple(one.name for one in lost if one.in_original == first.in_original)
    if first.in_original:
        words = f"The port has no counterpart of {listing(names)}, which the original trains."
    else:
        words = f"The port trains {listing(names)}, which the original does not have."
    sides = ("trained", "missing") if first.in_original else ("missing", "trained")
    return Difference(
        step, "parameter", first.name, words, *sides,
        diagnosis="parameter-lost" if first.in_original else "parameter-added", parameters=names,
    )  # fmt: skip


def _initial(comparison: Comparison) -> Difference | None:
    if not comparison.initial:
        return None
    first = comparison.initial[0]
    a, b = (f"mean {t.mean:.4g}, deviation {t.deviation:.4g}" for t in (first.original, first.ported))
    rest = " Given the original's values, all steps agree." if comparison.numbers_agree else ""
    return Difference(
        1,
        "initial",
        first.name,
        f"It starts from another distribution: {a} in the original, {b} in the port.{rest}",
        a,
        b,
        diagnosis="initialisation",
        parameters=tuple(d.name for d in comparison.initial),
    )


def _batch(comparison: Comparison, step: int) -> Difference:
    word, sentence = diagnose_batch(comparison.original, comparison.ported, step)
    mine, theirs = (describe_batch(r.steps[step - 1]) for r in (comparison.original, comparison.ported))
    return Difference(step, "batch", None, sentence, mine, theirs, diagnosis=word)


def _dropout(facts: StepFacts) -> Difference:
    mine, theirs = facts.dropped
    words = [
        ", ".join(f"{rate:g} on {size:,} values" for rate, size in d.items()) or "none"
        for d in (mine, theirs)
    ]
    lost = "dropout-lost" if not theirs else "dropout-added" if not mine else "dropout-rate"
    return Difference(
        facts.step, "dropout", None,
        f"Dropout differs: {words[0]} in the original, {words[1]} in the port.", *facts.dropped, diagnosis=lost,
    )  # fmt: skip


def _forward(comparison: Comparison, step: int) -> Difference | None:
    """A difference in the forward pass, seen in the loss or, where gradients differ, in the outputs."""
    losses, gradients = comparison.beyond(step, "loss"), comparison.beyond(step, "gradient")
    if not losses and not gradients:
        return None
    if losses and _backwards(comparison, step):
        return _backwards(comparison, step)
    place = locate(comparison, step)
    if place is None and not losses:
        return None
    checked = losses[0] if losses else max(gradients, key=lambda h: h.share)
    if place is None or (place.parameter is None and place.module.startswith("<")):  # a loss module
        return _at_loss(comparison, step, checked, place)
    return _at_module(comparison, step, checked, place)


def _backwards(comparison: Comparison, step: int) -> Difference | None:
    """A different number of backward passes in the step."""
    mine, theirs = (len(r.steps[step - 1].losses) for r in (comparison.original, comparison.ported))
    if mine == theirs:
        return None
    order = forward_order(comparison.original)
    found = _numeric_difference(
        comparison,
        step,
        comparison.beyond(step, "loss")[0],
        "loss",
        order[-1] if order else None,
        "accumulation",
        f"A step of the port adds up {theirs} backward {'pass' if theirs == 1 else 'passes'}, where one of the "
        f"original adds up {mine}: look at gradient accumulation.",
    )
    return replace(found, original=mine, ported=theirs, distance=None, bound=None)


def _at_module(comparison: Comparison, step: int, checked: CheckedDistance, place: Located) -> Difference:
    line = place.ported.line if place.ported else ""
    name = f"'{place.module}'" if place.module else "the model"
    before = f", or on the way to it from '{place.before}'" if place.before else ""
    other = place.ported.kind if place.ported and place.ported.kind != place.kind else ""
    quantity: Where = "loss"
    values = (checked.measure.original, checked.measure.ported, checked.measure.distance, checked.bound.value)
    if checked.measure.quantity != "loss":  # the loss differs too, but within its bound
        quantity = "output"
        squares = [o.square for o in (place.original, place.ported) if o is not None]
        values = (math.sqrt(squares[0]), math.sqrt(squares[-1]), place.distance, place.bound)
    return Difference(
        step, quantity, place.parameter or next(iter(forward_order(comparison.original)[-1:]), None),
        f"The first output that differs is that of {name} ({place.kind}{f', in the port {other}' if other else ''}): "
        f"the forward pass differs in it{before}.",
        *values, checked.bound.decided_by, "forward", place.module, line,
        parameters=tuple(h.measure.name for h in comparison.beyond(step, "gradient")),
    )  # fmt: skip


def _at_loss(
    comparison: Comparison, step: int, checked: CheckedDistance, place: Located | None
) -> Difference:
    """The outputs of all layers agree, so the loss is computed differently."""
    order = forward_order(comparison.original)
    a, b = checked.measure.original, checked.measure.ported
    gradient = scale_of("gradient", comparison.original, comparison.ported, step, order)
    ratio = b / a if a and math.isfinite(a) and math.isfinite(b) else None
    word, sentence = (
        "loss-function",
        "The outputs of all layers agree and the loss does not: it is computed otherwise.",
    )
    if not comparison.original.steps[step - 1].outputs:
        word = "forward"
        sentence = "The loss differs, and no module is called whose output would tell where."
    around = locate(comparison, step, around=True)
    if around is not None:
        word, place = "forward", around
        name = f"'{around.module}' ({around.kind})" if around.module else f"the model ({around.kind})"
        sentence = f"The outputs of all layers agree, and that of {name} around them does not: its forward() differs."
    elif ratio and (
        is_whole(abs(ratio))
        or is_whole(1 / abs(ratio))
        or (gradient and math.isclose(ratio, gradient, rel_tol=1e-3))
    ):
        word = "loss-scale"
        sentence = (
            f"The loss is {ratio:.6g} times the original's: look at its reduction (sum or mean), its weight, and what it is "
            "divided by."
        )
    found = _numeric_difference(
        comparison, step, checked, "loss", order[-1] if order else None, word, sentence
    )
    if place is None:
        return found
    return replace(found, module=place.module, line=place.ported.line if place.ported else "")


def _gradient(comparison: Comparison, step: int) -> Difference:
    beyond = {h.measure.name: h for h in comparison.beyond(step, "gradient")}
    order = forward_order(comparison.original)
    bounds = {name: checked.bound.value for name, checked in beyond.items()}
    word, sentence, culprit = diagnose_gradient(comparison.original, comparison.ported, step, bounds, order)
    return _numeric_difference(comparison, step, beyond[culprit], "gradient", culprit, word, sentence)


def _optimizer(comparison: Comparison, facts: StepFacts, is_beyond: bool) -> Difference | None:
    """Differing options; with another class of optimizer they count only where numbers differ."""
    counted = [d for d in facts.options if is_beyond or (d.same_class and d.option != "parameters")]
    if not counted:
        return None
    first = counted[0]
    everything = len(first.parameters) == len(
        [t for t in comparison.original.tensors if t.kind == "parameter"]
    )
    whom = "all parameters" if everything else listing(first.parameters)
    names = {"lr": "learning rate", "weight_decay": "weight decay"}
    words = (
        f"The optimizer's {names.get(first.option, first.option)} is {number(first.ported)} where the original has "
        f"{number(first.original)}, for {whom}."
    )
    if first.option == "parameters":
        words = f"The port's optimizer does not update {listing(first.parameters)}."
    more = [f"{d.option} ({number(d.original)} and {number(d.ported)})" for d in counted[1:]]
    return Difference(
        facts.step, "optimizer", first.parameters[0], words + (f" Also {', '.join(more)}." if more else ""),
        first.original, first.ported, option=first.option, parameters=first.parameters,
        diagnosis={"lr": "learning-rate", "parameters": "not-updated"}.get(first.option, first.option.replace("_", "-")),
    )  # fmt: skip


def _update(comparison: Comparison, step: int) -> Difference | None:
    updates = {h.measure.name: h for h in comparison.beyond(step, "update")}
    buffers = comparison.beyond(step, "buffer")
    if updates:
        names = [t.name for t in comparison.original.tensors if t.name in updates]
        word, sentence = diagnose_update(comparison.original, comparison.ported, step, names)
        mine, theirs = (r.steps[step - 1].optimizer for r in (comparison.original, comparison.ported))
        if mine.lower() != theirs.lower():
            word = "optimizer-class"
            sentence = f"The port updates with {theirs or 'code of its own'} where the original has {mine or 'code of its own'}. {sentence}"
        return _numeric_difference(comparison, step, updates[names[0]], "update", names[0], word, sentence)
    if buffers:
        first = buffers[0]
        sentence = "Loss, gradients and weights agree, and this buffer does not: look at the momentum or mode of its layer."
        if not first.measure.ported:
            sentence = "The port leaves this buffer as it is: its layer does not run in training mode."
        return _numeric_difference(comparison, step, first, "buffer", first.measure.name, "buffer", sentence)
    return None


def _numeric_difference(
    comparison: Comparison,
    step: int,
    checked: CheckedDistance,
    quantity: str,
    parameter: str | None,
    word: str,
    sentence: str,
) -> Difference:
    same = comparison.beyond(step, checked.measure.quantity)
    return Difference(
        step, quantity, parameter, sentence,  # type: ignore[arg-type]
        checked.measure.original, checked.measure.ported, checked.measure.distance, checked.bound.value, checked.bound.decided_by,
        word, parameters=tuple(h.measure.name for h in same if h.measure.name),
    )  # fmt: skip


def _too_few_steps(comparison: Comparison) -> Difference | None:
    mine, theirs = len(comparison.original.steps), len(comparison.ported.steps)
    if theirs >= mine:
        return None
    return Difference(
        theirs + 1, "steps", None,
        f"The port ended after {count(theirs, 'step')}, where the original goes on to {mine}.", mine, theirs, diagnosis="ended-early",
    )  # fmt: skip


def _statistics(comparison: Comparison) -> Difference | None:
    """Running statistics that the port lacks, which only evaluation would show."""
    names = tuple(lost_statistics(comparison.original, comparison.ported))
    if not names:
        return None
    return Difference(
        1, "buffer", names[0],
        f"The steps agree, but the port keeps no {listing(names)}, with which the original evaluates.", "kept", "missing",
        diagnosis="statistics-lost", parameters=names,
    )  # fmt: skip


def diagnose_batch(original: Recording, ported: Recording, step: int) -> tuple[str, str]:
    """The diagnosis as a word and as a sentence."""
    mine, theirs = original.steps[step - 1], ported.steps[step - 1]
    ratio = _size_ratio(mine, theirs)
    if ratio != 1:
        shapes = [" and ".join(str(list(d.shape)) for d in side.batch) for side in (mine, theirs)]
        return (
            "batch-size",
            f"The port's batch has {ratio:g} times the samples: {shapes[1]} where the original has {shapes[0]}.",
        )
    for other in sorted(original.steps, key=lambda s: (abs(s.index - step), s.index)):
        if other.index != step and same_batch(other, theirs):
            apart = other.index - step
            way = "ahead of" if apart > 0 else "behind"
            steps = f"{abs(apart)} step{'' if abs(apart) == 1 else 's'}"
            others = [s for s in original.steps if s.index != other.index and same_batch(s, theirs)]
            again = f" (and in {len(others)} more)" if others else ""
            return "batch-shifted", (
                f"The port's batch is the one that the original sees in step {other.index}{again}: it is {steps} {way} it."
            )
    changed = [d for d in mine.batch if not any(same_values(d, o) for o in theirs.batch)]
    kept = len(mine.batch) - len(changed)
    if kept and changed:
        new = [d for d in theirs.batch if not any(same_values(d, o) for o in mine.batch)]
        if new and math.prod(new[0].shape) == math.prod(changed[0].shape):
            return "batch-values", (
                f"The batch's tensor of shape {list(changed[0].shape)} holds other values, while {kept} of its tensors are "
                f"the same: mean {_mean(changed[0]):.4g} and deviation {_deviation(changed[0]):.4g} in the original, "
                f"{_mean(new[0]):.4g} and {_deviation(new[0]):.4g} in the port. Look at transforms and normalisation."
            )
    return (
        "batch-order",
        "The port's batch is none of those that the original sees: look at shuffling, seeds and the dataset.",
    )


def describe_batch(step: Step) -> list[dict[str, Any]]:
    return [
        {"shape": list(d.shape), "dtype": d.dtype, "mean": _mean(d), "deviation": _deviation(d)}
        for d in step.batch
    ]


def _size_ratio(mine: Step, theirs: Step) -> float:
    """The factor by which all tensors of the batch are larger; 1 where they do not share one."""
    if len(mine.batch) != len(theirs.batch):
        return 1.0
    ratios = {
        math.prod(b.shape) / max(1, math.prod(a.shape)) for a, b in zip(mine.batch, theirs.batch, strict=True)
    }
    return ratios.pop() if len(ratios) == 1 else 1.0


def _mean(digest: TensorDigest) -> float:
    return digest.total / max(1, math.prod(digest.shape))


def _deviation(digest: TensorDigest) -> float:
    count = max(1, math.prod(digest.shape))
    return math.sqrt(max(0.0, digest.square / count - _mean(digest) ** 2))
