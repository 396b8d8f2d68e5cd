"""Loops of TensorFlow 1, whose ops lie in the graph itself between Enter and Exit instead of in a function."""

from __future__ import annotations

from typing import Any

from portwright.graph.graph import Phase
from portwright.tensorflow.capturing.literals import number_of
from portwright.tensorflow.capturing.tape import PASSING, Known, Writer

_COMPARISONS = {"Less": 0, "LessEqual": 1}


def loops_around(op: Any) -> list[Any]:
    """Contexts of the loops that an op lies in, the innermost first."""
    found = []
    context = op._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext():
            found.append(context)
        context = context.outer_context
    return found


def write_in_loop(writer: Writer, op: Any, phase: Phase, args: tuple[Known, ...], loops: list[Any]) -> bool:
    """Writes an op as often as its loops turn; False for what is written as outside of a loop."""
    if op.type in ("Merge", "RefMerge"):  # of the first turn and the others, not of two branches
        writer.env[op, 0] = args[0]
        return True
    if op.type in PASSING or op.type in ("Switch", "RefSwitch"):
        return False
    turns, is_known = 1, True
    for loop in loops:
        found = count_turns(loop)
        turns, is_known = turns * (found or 1), is_known and found is not None
    first = _forward(loops[0])
    place = writer.tape.place_of(first.pivot.op, writer.around_place)
    if op.type == "LoopCond":
        writer.tape.set_place(op, place)
        known = "is counted for one turn" if is_known else "and what it computes is counted for one turn"
        unknown = "" if is_known else "how often this loop turns is not known from the graph; "
        writer.tape.notes.append(f"{place}: {unknown}what it keeps for its gradient {known}.")
    before, writer.trips, writer.is_looping = writer.trips, turns, True
    try:
        writer.write_plain(op, phase, args)
    finally:
        writer.trips, writer.is_looping = before, False
    return True


def _forward(loop: Any) -> Any:
    """The loop itself, of the loop that computes its gradient."""
    return loop.grad_state.forward_context if loop.grad_state is not None else loop


def count_turns(loop: Any) -> int | None:
    """How often a loop turns that counts up to a number that is known; None for another."""
    pending = [_forward(loop).pivot.op.inputs[0].op]
    while pending:
        op = pending.pop()
        if op.type == "LogicalAnd":
            pending += [tensor.op for tensor in op.inputs]
        if op.type in _COMPARISONS:
            counter, limit = op.inputs[0].op, _entered(op.inputs[1])
            if counter.type == "Merge" and limit is not None:
                start, step = _entered(counter.inputs[0]), _step(counter)
                if start is not None and step:
                    return max(0, -(-(limit - start + _COMPARISONS[op.type]) // step))
    return None


def _entered(tensor: Any) -> int | None:
    while tensor.op.type in ("Enter", "Identity"):
        tensor = tensor.op.inputs[0]
    found = number_of(tensor)
    return int(found) if found is not None and getattr(found, "ndim", 1) == 0 else None


def _step(merge: Any) -> int | None:
    """By how much a loop's counter grows in a turn."""
    again = merge.inputs[1].op
    made = again.inputs[0].op if again.type == "NextIteration" else again
    if made.type not in ("Add", "AddV2"):
        return None
    amounts = [_entered(tensor) for tensor in made.inputs]
    return next((amount for amount in amounts if amount is not None), None)
