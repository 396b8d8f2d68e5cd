"""Where a model is cut: at the beginnings of modules, so that the busiest stage has the least work and little is sent."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

from portwright.errors import UserError, suggest
from portwright.runtime.pipelined.tape import Place, Tape

_TOLERANCE = 1.03  # the busiest stage may have so much more work than needed, to send fewer bytes
_MOST_CANDIDATES = 400


def choose_cuts(tape: Tape, num_stages: int, asked: Sequence[str] | None) -> list[Place]:
    """The places at which the second and each later stage begins."""
    if asked is not None:
        return _places_asked(tape, asked)
    candidates = _candidates(tape)
    if num_stages > len(candidates) + 1:
        raise UserError(
            f"the model can be cut into at most {len(candidates) + 1} stages, and {num_stages} were asked for.",
            "Start fewer processes, or set runconfig.pipeline.replicas so that fewer stages are left.",
        )
    positions = list(candidates)
    total = list(accumulate((call.work for call in tape.calls), initial=0.0))
    bytes_at = [_crossing_bytes(tape, position) for position in positions]
    chosen = _balance(positions, total, bytes_at, num_stages)
    return [candidates[position] for position in chosen]


def locate(tape: Tape, places: Sequence[Place]) -> list[int]:
    """The calls at which stages begin on this tape, which may be of another shape than the one that was cut."""
    positions = []
    for place in places:
        span = tape.find(place)
        if span is None:
            raise UserError(
                f"a stage begins at '{place}', which a batch of this shape does not call.",
                "Give all batches one path through the model, or set runconfig.pipeline.cuts to modules that all call.",
            )
        positions.append(span.first)
    if positions != sorted(set(positions)):
        raise UserError(
            f"a batch of this shape calls {', '.join(map(str, places))} in another order than the first batch.",
            "Give all batches one path through the model.",
        )
    for position, place in zip(positions, places, strict=True):
        reason = why_not(tape, position)
        if reason is not None:
            raise UserError(
                f"no stage can begin at '{place}': {reason}.", "Choose other runconfig.pipeline.cuts."
            )
    return positions


def _places_asked(tape: Tape, asked: Sequence[str]) -> list[Place]:
    found: dict[int, Place] = {}
    called = {span.path for span in tape.spans if span.path}
    for path in asked:
        span = tape.find(Place(path, 0))
        if span is None:
            inside = sorted(name for name in called if name.startswith(f"{path}."))
            cure = (
                f"Name what is in it, such as {inside[len(inside) // 2]}."
                if inside
                else suggest(path, called)
            )
            what = (
                "is a list of modules and is never called itself"
                if inside
                else "is no module that the model calls"
            )
            raise UserError(f"runconfig.pipeline.cuts: '{path}' {what}.", cure)
        if span.first <= _first_weight(tape):
            raise UserError(
                f"runconfig.pipeline.cuts: nothing comes before '{path}', so no stage can end there.",
                "Name a later module.",
            )
        if span.first in found:
            raise UserError(
                f"runconfig.pipeline.cuts: '{path}' and '{found[span.first]}' begin at the same place.",
                "Leave one out.",
            )
        found[span.first] = Place(path, 0)
    places = [found[position] for position in sorted(found)]
    locate(tape, places)
    return places


def _candidates(tape: Tape) -> dict[int, Place]:
    """Every call at which a stage may begin because a module does, with the outermost such module."""
    starts: dict[int, Place] = {}
    for span in tape.spans:
        if span.first < span.last and span.path:
            starts.setdefault(span.first, Place(span.path, span.number))
    first = _first_weight(tape)
    return {
        position: starts[position]
        for position in sorted(starts)
        if position > first and why_not(tape, position) is None
    }


def _first_weight(tape: Tape) -> int:
    """The first call that uses a weight; each stage can compute earlier values, such as a mask, for itself."""
    for position, call in enumerate(tape.calls):
        if any(tape.values[index].kind == "weight" for index in call.uses):
            return position
    return len(tape.calls)


def why_not(tape: Tape, position: int) -> str | None:
    """Why no stage can begin at a call: both sides of it use some memory, and one side writes to it."""
    crossing: dict[int, set[int]] = defaultdict(set)
    fixed: dict[int, bool] = {}  # storages of batch, constants and buffers: used before and after
    before: set[int] = set()
    for call in tape.calls[:position]:
        before |= {tape.values[index].storage for index in call.uses if tape.values[index].kind != "made"}
    for call in tape.calls[position:]:
        for index in call.uses:
            value = tape.values[index]
            if value.kind == "made" and value.made_by < position:
                crossing[value.storage].add(index)
            elif value.kind != "made" and value.storage in before:
                fixed[value.storage] = True
    for number, call in enumerate(tape.calls):
        for index in call.writes:
            storage = tape.values[index].storage
            if fixed.get(storage):
                return f"{call.line} changes in place what both sides use"
            if number >= position and len(crossing.get(storage, ())) > 1:
                return f"{call.line} changes in place a tensor that is cut from its views"
    return None


def _crossing_bytes(tape: Tape, position: int) -> int:
    crossing = {
        index
        for call in tape.calls[position:]
        for index in call.uses
        if tape.values[index].kind == "made"
        and tape.values[index].made_by < position
        and not tape.values[index].can_remake
    }
    return sum(tape.values[index].num_bytes for index in crossing)


def _balance(
    positions: Sequence[int], total: Sequence[float], bytes_at: Sequence[int], num_stages: int
) -> list[int]:
    """Cuts whose busiest stage is within a tolerance of the best; of those, the ones that send the fewest bytes."""
    if num_stages == 1:
        return []
    pairs = list(zip(positions, bytes_at, strict=True))
    if len(pairs) > _MOST_CANDIDATES:  # keeps those with the fewest bytes to send
        kept = max(_MOST_CANDIDATES, num_stages)
        pairs = sorted(sorted(pairs, key=lambda pair: pair[1])[:kept])
    places = [0, *(position for position, _ in pairs), len(total) - 1]
    sent = [0, *(size for _, size in pairs), 0]

    def work(before: int, place: int) -> float:
        return total[places[place]] - total[places[before]]

    least, _ = _cheapest(len(places), num_stages, max, work)
    bound = least * _TOLERANCE
    _, ends = _cheapest(
        len(places),
        num_stages,
        operator.add,
        lambda before, place: sent[place] if work(before, place) <= bound else math.inf,
    )
    return [places[place] for place in ends]


def _cheapest(
    num_places: int,
    num_stages: int,
    join: Callable[[float, float], float],
    cost: Callable[[int, int], float],
) -> tuple[float, list[int]]:
    """The least cost of stages that reach from the first place to the last, and the places between them.

    `cost` is that of a stage between two places, and `join` makes one cost of several.
    """
    best = {0: 0.0}  # the least cost of the stages so far, by the place where they end
    came: list[dict[int, int]] = []  # where the last of them begins
    for stage in range(1, num_stages + 1):
        reached: dict[int, float] = {}
        came.append({})
        for place in range(stage, num_places):
            costs = {before: join(best[before], cost(before, place)) for before in best if before < place}
            came[-1][place] = min(costs, key=costs.__getitem__)
            reached[place] = costs[came[-1][place]]
        best = reached
    ends, place = [], num_places - 1
    for begins in came[:0:-1]:
        place = begins[place]
        ends.append(place)
    return best[num_places - 1], ends[::-1]
