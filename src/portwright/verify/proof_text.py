"""Renders a proof as a few lines of text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from portwright.verify.difference import Difference, count, number
from portwright.verify.proof import Proof

SETTLED = {
    "identical": "every number is the same",
    "dtype": "distances are within the rounding of the dtype",
    "noise": "distances are within what one rounding in the weights does to the original itself",
    "float64": "distances are rounding: in float64 both runs agree",
}
_ONE = {"loss": "a loss", "gradient": "a gradient", "update": "an update", "buffer": "a buffer's change"}
_NAMES = {"loss": "loss", "gradient": "gradients", "update": "updates", "buffer": "buffers"}


def render(proof: Proof) -> str:
    """The verdict first, then its evidence."""
    lines = _different(proof) if proof.first_difference else _agreeing(proof)
    lines += beyond_lines(proof)
    if proof.place.on_target is False:
        lines.insert(0, f"NOT A PROOF: {proof.place.says}")
    elif proof.place.says:
        lines.append(f"  where: {proof.place.says}")
    if proof.front_end:
        lines.append(f"  front end: {front_end_words(proof.front_end)}")
    lines += [f"  note: {note}" for note in proof.notes]
    return "\n".join(lines)


def front_end_words(verdict: dict[str, Any]) -> str:
    """The verdict of the vendor's front end on the port's step."""
    who = f"{str(verdict.get('target', '')).upper()} {verdict.get('sdk', '')}".strip()
    if verdict.get("accepted"):
        return f"{who} lowers the port's step ({verdict.get('ops', 0):,} ops); nothing ran on such a machine"
    cure = f" {verdict['cure']}" if verdict.get("cure") else ""
    return f"{who} refuses it in {verdict.get('stage', 'a stage')}: {verdict.get('words', '')}{cure}"


def beyond_lines(proof: Proof) -> list[str]:
    """What was compared outside the steps, and what was not seen."""
    lines = [
        f"  {p['what']}: {p['state']}, {p['says']}" for p in proof.beyond_steps if p["state"] != "not seen"
    ]
    unseen = [p["what"] for p in proof.beyond_steps if p["state"] == "not seen"]
    return lines + ([f"  not seen in {count(proof.steps, 'step')}: {', '.join(unseen)}"] if unseen else [])


def headline(proof: Proof) -> str:
    """The verdict with its largest bound, or with the first difference."""
    found = proof.first_difference
    if found is not None and found.quantity == "crash":
        when = f"after {count(found.step - 1, 'step')}" if found.step > 1 else "before its first step"
        return f"different: the port fails {when}{f', at {found.line}' if found.line else ''}"
    if found is not None and found.quantity == "run":
        return f"different beside the {count(proof.steps, 'step')}: {found.reason.partition(':')[0]}"
    if found is not None:
        return f"different: they part at step {found.step}, {subject(found)}"
    if not proof.equal:
        return f"cannot tell: {proof.unsure}"
    if proof.settled_by == "identical":
        text = f"equal over {count(proof.steps, 'step')}, bit for bit as far as it was recorded"
    else:
        text = f"equal over {count(proof.steps, 'step')}; largest bound {proof.bound:.2g} of {_ONE[proof.bound_quantity]}"
    return text + (
        ", and nothing was ported: both programs ran the same files" if proof.nothing_ported else ""
    )


def _agreeing(proof: Proof) -> list[str]:
    lines = [headline(proof)]
    if not proof.worst:
        return lines
    if proof.equal:
        lines.append(f"  {SETTLED[proof.settled_by or 'dtype']}")
    lines.append(f"  loss {show_losses(proof, 0)} to {show_losses(proof, -1)}")
    lines += [_distance_line(quantity, row) for quantity, row in proof.worst.items()]
    if proof.settled_by == "float64" and proof.float64:
        lines.append("  in float64:")
        lines += [f"  {_distance_line(quantity, row)}" for quantity, row in proof.float64.items()]
    matched = matched_words(proof.matches)
    if matched:
        lines.append(f"  matched: {matched}")
    if proof.dropout == "off":
        lines.append(f"  dropout: {dropout_words(proof)}")
    return lines


def _distance_line(quantity: str, row: dict[str, Any]) -> str:
    if not row["worst_distance"]:
        return f"  {_NAMES[quantity]}: no distance"
    by = "" if row["decided_by"] == "dtype" else " (measured noise)"
    where = f" at step {row['step']}" + (f", {row['name']}" if row["name"] else "")
    return (
        f"  {_NAMES[quantity]}: worst distance {row['worst_distance']:.2g} of {row['bound']:.2g}{by}{where}"
    )


def show_losses(proof: Proof, place: int) -> str:
    # The second of two optimizers makes its own step, without a loss.
    steps = [losses for losses in proof.losses["original"][: proof.steps] if losses]
    return "+".join(number(v) for v in steps[place]) if steps else "none"


def dropout_words(proof: Proof) -> str:
    rates = ", ".join(f"{rate} on {size:,} values a step" for rate, size in proof.dropout_values.items())
    return f"turned off in both, since masks drawn in another order would hide the rest; rates agree ({rates or 'none'})"


def matched_words(matches: list[dict[str, Any]]) -> str:
    """How many tensors were matched in which way."""
    kinds = Counter(str(m["by"]) for m in matches)
    words = {"name": "by name", "values": "by their values", "shape": "by shape", "order": "by order of use"}
    parts = [f"{many} {words.get(kind, kind)}" for kind, many in kinds.most_common()]
    moved = sum(m["layout"] != "same" for m in matches)
    copied = sum(m["initial"] == "copied" for m in matches)
    if moved:
        parts.append(f"{moved} in another layout")
    if copied:
        parts.append(f"{copied} given the original's initial values")
    return ", ".join(parts)


def _different(proof: Proof) -> list[str]:
    found = proof.first_difference
    assert found is not None
    lines = [headline(proof), f"  {found.reason}"]
    values = values_words(found)
    if values:
        lines.append(f"  {values}")
    if found.line and found.quantity != "crash":
        lines.append(f"  at {found.line}")
    if found.rule:
        lines.append(f"  likely rule: {found.rule}{f', {found.rule_reason}' if found.rule_reason else ''}")
    if proof.bisected:
        lines.append(f"  bisected: {proof.bisected['says']}")
    if proof.steps and found.step > 1 and found.quantity != "run":
        lines.append(f"  the {count(found.step - 1, 'step')} before agree")
    return lines


def subject(found: Difference) -> str:
    """The quantity and its parameter in words."""
    name = f" of {found.parameter}" if found.parameter else ""
    words = {
        "crash": "the port fails",
        "parameter": f"parameter {found.parameter}",
        "initial": f"initial values{name}",
        "batch": "the batch",
        "dropout": "dropout",
        "output": f"the output of {found.module}; first parameter {found.parameter}",
        "loss": f"the loss; first parameter {found.parameter}" if found.parameter else "the loss",
        "gradient": f"gradient{name}",
        "optimizer": f"the optimizer's {found.option}{name}",
        "update": f"update{name}",
        "buffer": f"buffer {found.parameter}",
        "steps": "the number of steps",
        "run": "what is beside the steps",
    }
    return words[found.quantity]


def values_words(found: Difference) -> str:
    """Both values, where they are numbers, and the distance with its bound."""
    if found.quantity not in ("output", "loss", "gradient", "update", "buffer"):
        return ""
    if found.diagnosis == "accumulation" and found.distance is None:
        return ""
    what = "" if found.quantity == "loss" else "norm "
    text = f"{what}{number(found.original)} in the original, {number(found.ported)} in the port"
    if found.distance is not None and found.bound is not None:
        text += f"; distance {found.distance:.2g}, allowed {found.bound:.2g}"
    return text
