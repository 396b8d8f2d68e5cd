"""Compares the rest of two runs (epochs, schedules, evaluation, checkpoints), and says what could not be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from portwright.verify.difference import count, listing
from portwright.verify.measure import VAGUE
from portwright.verify.recording import Recording

State = Literal["equal", "different", "cannot tell", "not seen", "not compared"]
Row = Mapping[str, Any]
Line = Sequence[Any]  # a printed line: its words, and its numbers as text


@dataclass(frozen=True)
class Part:
    """One thing beside the steps; `says` is what was compared, what differs, or why nothing was."""

    what: str
    state: State
    says: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(original: Recording, ported: Recording, moved: Recording | None = None) -> list[Part]:
    """Compares epochs, shuffling, later learning rates, evaluation and checkpoints.

    `moved` is a run of the original with perturbed weights and a fast clock: what differs there too is not compared.
    """
    mine, theirs = original.run, ported.run
    if not mine or not theirs:
        return []
    steps = min(len(original.steps), len(ported.steps))
    steady = mine["printed"] if moved is None else moved.run["printed"]
    parts: list[tuple[str, Callable[[Row, Row, int], tuple[State, str]]]] = [
        (
            "what comes after the steps",
            lambda a, b, _: _after_steps(a, b, original.command[1:] == ported.command[1:]),
        ),
        ("an epoch", _epoch),
        ("shuffling", _shuffling),
        ("learning rates to come", _rates),
        ("evaluation data", _evaluation),
        ("evaluation outputs", _outputs),
        (
            "what is printed of evaluations",
            lambda a, b, _: _printed(a["printed"], b["printed"], steady, _cut_alike(a, b)),
        ),
        ("keys of checkpoints", _saved),
    ]
    found = []
    for what, find in parts:
        state, says = find(mine, theirs, steps)
        if state == "different" and moved is not None and find(mine, moved.run, steps)[0] == "different":
            state, says = "not compared", f"two runs of the original differ in it, too; here {says}"
        found.append(Part(what, state, says))
    return found


def _after_steps(mine: Row, theirs: Row, same_arguments: bool) -> tuple[State, str]:
    """Code after the recorded steps must not fail in the port; with other arguments it may end after another number of updates."""
    a, b = mine["rest"], theirs["rest"]
    if not a or not b:
        return "not seen", "the programs end with the steps"
    if a["failure"]:
        return "not compared", f"the original fails where its epochs are cut: {a['failure']}"
    if b["failure"]:
        return "different", f"the original goes on, and the port fails: {b['failure']}"
    for this, other, name, who in ((a, b, "original", "port"), (b, a, "port", "original")):
        if this["is_over"] and len(other["updates"]) > len(this["updates"]):
            return (
                "different" if same_arguments and _cut_alike(mine, theirs) else "not compared",
                f"the {name} ends {count(len(this['updates']), 'update')} behind the steps, and the {who} goes on",
            )
    return (
        "equal",
        f"neither fails in {count(min(len(a['updates']), len(b['updates'])), 'further update')}, in epochs of one batch",
    )


def _cut_alike(mine: Row, theirs: Row) -> bool:
    """Whether the recorder shortened the later epochs of both or of neither; it cannot shorten epochs without a loader."""
    a, b = mine["rest"], theirs["rest"]
    return not theirs["is_run"] and bool(a) == bool(b) and (not a or a["is_cut"] == b["is_cut"])


def _further_updates(mine: Row, theirs: Row) -> list[tuple[Row, Row]]:
    """The updates that both made after the recorded steps."""
    a, b = mine["rest"], theirs["rest"]
    return list(zip(a["updates"], b["updates"], strict=False)) if a and b and _cut_alike(mine, theirs) else []


def _epoch(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    if mine["epochs_ended"] and theirs["epochs_ended"]:
        return "equal", f"the {steps} steps go beyond its end"
    a, b = mine["loader"], theirs["loader"]
    if not a or not b:
        return "not seen", "its end is not reached, and the loader does not tell its length"
    if a["first"] != b["first"]:
        if a["num_samples"] == b["num_samples"]:
            return "equal", f"{count(a['num_samples'], 'sample')}, in batches of other sizes"
        return "different", f"{_samples(a)} in the original, {_samples(b)} in the port"
    same = (a["num_batches"], a["last"]) == (b["num_batches"], b["last"])
    if same:
        return "equal", f"by the loaders: {_batches(a)}"
    return "different", f"the loader gives {_batches(a)} in the original, {_batches(b)} in the port"


def _samples(loader: Row) -> str:
    return f"{count(loader['num_samples'], 'sample')} an epoch"


def _batches(loader: Row) -> str:
    of = (
        f"{loader['first']}"
        if loader["last"] == loader["first"]
        else f"{loader['first']}, the last of {loader['last']}"
    )
    return f"{loader['num_batches']} {'batch' if loader['num_batches'] == 1 else 'batches'} of {of}"


def _shuffling(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    fed = [(x["batch"], y["batch"]) for x, y in _further_updates(mine, theirs) if x["batch"] and y["batch"]]
    for number, (x, y) in enumerate(fed, 1):
        if not all(
            math.isclose(p, q, rel_tol=1e-6, abs_tol=1e-6 * math.sqrt(x[1] + 1))
            for p, q in zip(x, y, strict=True)
        ):
            return (
                "different",
                f"the first batch of an epoch is another one in the port, {count(number, 'update')} behind the steps",
            )
    a, b = mine["loader"], theirs["loader"]
    if not a or not b:
        return "not seen", "the loader does not tell the order of a second epoch"
    if a["is_shuffled"] != b["is_shuffled"]:
        if len(fed) > 1:
            return (
                "equal",
                f"the first batches of {count(len(fed), 'epoch')} are the same, though one of the two shuffles by other means",
            )
        return (
            "cannot tell",
            "one of the two shuffles by other means than its loader, and no further epoch is seen",
        )
    words = [
        "in another order in the second epoch" if x["is_reshuffled"] else "in the same order in each epoch"
        for x in (a, b)
    ]
    if words[0] == words[1]:
        return "equal", f"by the loaders: {words[0]}"
    return "different", f"the loader gives its samples {words[0]} in the original, {words[1]} in the port"


def _rates(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    schedules, others = mine["schedules"], theirs["schedules"]
    further = _further_updates(mine, theirs)
    for number, (x, y) in enumerate(further, 1):
        left, right = x["rates"], y["rates"]
        if len(x["calls"]) == len(y["calls"]) and x["calls"] != y["calls"]:
            return (
                "different",
                f"{x['calls']} calls of the scheduler before the further update {number} in the original, {y['calls']} in the port",
            )
        if not _same(left, right):
            return (
                "different",
                f"{left} at the further update {number} in the original, {right} in the port (epochs of one batch)",
            )
    if not schedules and (theirs["is_run"] or not others):
        if further:
            return (
                "equal",
                f"in {count(len(further), 'further update')}, in epochs of one batch; no scheduler tells of later ones",
            )
        return "not seen", "no scheduler was made: what a script sets itself shows in the steps alone"
    if theirs["is_run"]:
        return _rates_by_update(mine, others[0]["rates"], steps)
    if len(schedules) != len(others):
        return "cannot tell", f"the original has {len(schedules)} and the port {len(others)} schedulers"
    least = math.inf
    for a, b in zip(schedules, others, strict=True):
        first = max(a["calls"], b["calls"]) + 1
        x, y = (row["rates"][first - row["calls"] - 1 :] for row in (a, b))
        if not x or not y:
            return "not compared", f"{a['kind']} or {b['kind']} decides by what training gives"
        for number, (left, right) in enumerate(zip(x, y, strict=False)):
            if not _same(left, right):
                return (
                    "different",
                    f"{left} after call {first + number} of {a['kind']} in the original, {right} in the port",
                )
        least = min(least, len(x), len(y))
    if any(a["calls"] != b["calls"] for a, b in zip(schedules, others, strict=True)):
        return "different", "the original has called its scheduler another number of times than the port"
    return "equal", f"after each of the next {least} calls of the scheduler"


def _rates_by_update(mine: Row, rates: list[list[float]], steps: int) -> tuple[State, str]:
    """Compares the original's scheduler with a port that uses run(), which knows the learning rate of each update."""
    if len(mine["schedules"]) != 1:
        return "not compared", f"the original has {len(mine['schedules'])} schedulers"
    schedule, loader = mine["schedules"][0], mine["loader"]
    if schedule["calls"] in (steps - 1, steps) and steps > 1:
        updates = 1
    elif (
        mine["epochs_ended"]
        and loader
        and schedule["calls"] in (mine["epochs_ended"] - 1, mine["epochs_ended"])
    ):
        updates = loader["num_batches"]
    else:
        return "not compared", f"the {steps} steps do not show when the original calls its scheduler"
    num = 0
    for call, left in enumerate(schedule["rates"], schedule["calls"] + 1):
        for update in {call * updates, (call + 1) * updates - 1}:
            if update < len(rates):
                num = max(num, update + 1)
                if not _same(left[:1], rates[update]):
                    return (
                        "different",
                        f"{left[0]:.6g} at update {update + 1} in the original, {rates[update][0]:.6g} in the port",
                    )
    return (
        ("equal", f"up to update {num}")
        if num
        else ("not seen", "the scheduler decides by what training gives")
    )


def _same(some: list[float], others: list[float]) -> bool:
    return len(some) == len(others) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12) for a, b in zip(some, others, strict=True)
    )


def _evaluation(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    """Compares the evaluation data; those of a port with run() were read from its input function."""
    some, others = mine["evaluations"], theirs["evaluations"]
    if theirs["is_run"]:
        some = [e for e in some if not e["by_hand"]]
    if not some:
        return "not seen", "the original evaluates nothing"
    if not others:
        return (
            "different" if _cut_alike(mine, theirs) else "not compared",
            f"the original evaluates on {_sizes(some)}, the port on nothing in as many steps",
        )
    held_out = [e for e in some if not e["is_training_data"]] or some
    lost = [e for e in held_out if not any(e["samples"] == o["samples"] for o in others)]
    known = held_out if theirs["is_run"] else some
    added = [o for o in others if not any(e["samples"] == o["samples"] for e in known)]
    if added or (lost and not theirs["is_run"]):
        return "different", f"the original evaluates on {_sizes(some)}, the port on {_sizes(others)}"
    # run() evaluates on one data set
    sought, given = (others, held_out) if theirs["is_run"] else (held_out, others)
    unlike = [e for e in sought if not any(_same_data(e, o) for o in given)]
    if unlike and any(o.get("is_drawn") for o in others):
        return (
            "not compared",
            f"{_sizes(some)} in the original, as many in the port, but its data are drawn at random",
        )
    if unlike:
        return (
            "different",
            f"of {_sizes(unlike)} that the original evaluates on, the port has as many with other values",
        )
    also = f"; the original evaluates on {_sizes(lost)}, too" if lost else ""
    return "equal", f"the same values: {_sizes(others if theirs['is_run'] else some)}{also}"


def _same_data(a: Row, b: Row) -> bool:
    scale = max(a["square"], b["square"])
    near = abs(a["total"] - b["total"]) <= 1e-9 * math.sqrt(scale * max(1, a["samples"])) + 1e-9 * abs(
        a["total"]
    )
    linked = math.isclose(a["linked"], b["linked"], rel_tol=1e-9)
    return (
        bool(a["samples"] == b["samples"])
        and near
        and linked
        and abs(a["square"] - b["square"]) <= 1e-9 * scale
    )


def _sizes(evaluations: list[Row]) -> str:
    sizes = dict.fromkeys((e["samples"], e.get("is_training_data", False)) for e in evaluations)
    return listing(tuple(f"{count(n, 'sample')}{' of the training data' if own else ''}" for n, own in sizes))


def _outputs(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    """Compares the norms of the model's outputs for the same data after the same step, since metrics have no common form."""
    pairs = [
        (a["output"], b["output"])
        for a in mine["evaluations"]
        for b in theirs["evaluations"]
        if a["after_step"] == b["after_step"] <= steps
        and _same_data(a, b)
        and a["output"][0] == b["output"][0] > 0
    ]
    if not pairs or theirs["is_run"]:
        return "not seen", "no evaluation of both with the same data after the same step"
    for a, b in pairs:
        left, right = math.sqrt(a[1]), math.sqrt(b[1])
        if abs(left - right) > VAGUE * max(left, right):
            return "different", f"norm {left:.6g} in the original, {right:.6g} in the port, for the same data"
    return "equal", f"within {VAGUE:g}, in {count(len(pairs), 'evaluation')}"


def _printed(mine: list[Line], theirs: list[Line], steady: list[Line], cut_alike: bool) -> tuple[State, str]:
    """Compares the numbers in printed lines with the same words, which show a metric that is computed differently.

    Numbers that differ in `steady`, from a second run of the original, are times or the like and not compared.
    """
    if mine and not cut_alike:
        return "not compared", "the two do not print after the same updates"
    num_compared = 0
    for words in dict.fromkeys(words for words, _ in mine):
        a, b, again = (
            [numbers for said, numbers in side if said == words] for side in (mine, theirs, steady)
        )
        rows = list(zip(a, again, strict=False))
        columns = [
            n for n in range(len(a[0])) if rows and all(_reads_same(x[n], y[n], 1e-4) for x, y in rows)
        ]
        for left, right in zip(a, b, strict=False):
            num_compared += bool(columns)
            if not all(_reads_same(left[n], right[n], 1e-3) for n in columns):
                return (
                    "different",
                    f"'{_filled(words, left)}' in the original, '{_filled(words, right)}' in the port",
                )
    if not mine:
        return "not seen", "the original prints no number of one"
    if not num_compared:
        return "not compared", "the port prints no line with the same words and a number that repeats"
    return "equal", f"the numbers in {count(num_compared, 'line')}"


def _filled(words: str, numbers: list[str]) -> str:
    parts = words.split("#")
    return "".join(part + number for part, number in zip(parts, [*numbers, ""], strict=True))


def _reads_same(a: str, b: str, share: float) -> bool:
    """Whether two printed numbers agree within the last digit of the shorter one, plus a relative tolerance `share`."""
    x, y = float(a), float(b)
    unit = max(10.0 ** -len(text.partition(".")[2]) if "e" not in text.lower() else 0.0 for text in (a, b))
    exact = a.isdigit() and b.isdigit()
    return x == y or (not exact and abs(x - y) <= 1.01 * unit + share * max(abs(x), abs(y)))


def _saved(mine: Row, theirs: Row, steps: int) -> tuple[State, str]:
    if not mine["saved"]:
        return "not seen", f"the original saves nothing in {count(steps, 'step')}"
    if theirs["is_run"]:
        return "not compared", "run() writes checkpoints of its own format"
    if not theirs["saved"]:
        state: State = "different" if _cut_alike(mine, theirs) else "not compared"
        return state, "the original saves files, the port nothing in as many steps"
    for one in mine["saved"]:
        if one not in theirs["saved"]:
            near = min(theirs["saved"], key=lambda other: len(_keys(one) ^ _keys(other)))
            lost, added = sorted(_keys(one) - _keys(near)), sorted(_keys(near) - _keys(one))
            return (
                "different",
                f"only the original saves {listing(tuple(lost)) or 'nothing'}, only the port {listing(tuple(added)) or 'nothing'}",
            )
    return "equal", f"of {count(len(mine['saved']), 'kind')} of file"


def _keys(saved: Row) -> set[str]:
    if "class" in saved:
        return {f"a whole {saved['class']}"}
    return {f"{outer}.{key}" if outer else key for outer, keys in saved.items() for key in keys}
