"""Functions, loops and branches of a graph: each call is replaced by the ops of the body it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from portwright.errors import UserError
from portwright.graph.graph import Phase, Ref
from portwright.tensorflow.capturing.phases import find_static, is_host, original
from portwright.tensorflow.capturing.shapes import Literal, number_of
from portwright.tensorflow.capturing.tape import Known, Writer, key_of

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_WHILES = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_PLUMBING = ("TensorList", "EmptyTensorList", "Optional")
_COMPARISONS = {"Less": 0, "LessEqual": 1}


def write_call(writer: Writer, op: Any, phase: Phase, args: tuple[Known, ...]) -> bool:
    """Writes the body that a call, loop or branch op runs; returns False for any other op."""
    if op.type in _CALLS:
        _bind(writer, op, _inline(writer, op, op.get_attr("f").name, args, phase))
    elif op.type in _WHILES:
        _write_while(writer, op, phase, args)
    elif op.type in _BRANCHES:
        _write_branches(writer, op, phase, args)
    elif op.type in ("Switch", "RefSwitch"):
        _bind(writer, op, [args[0], args[0]])
    else:
        return False
    return True


def _bind(writer: Writer, op: Any, made: Sequence[Known]) -> None:
    for tensor, known in zip(op.outputs, made, strict=False):
        writer.env[key_of(tensor)] = known


def _inline(
    writer: Writer, op: Any, name: str, args: Sequence[Known], phase: Phase, turns: int | None = None
) -> list[Known]:
    body = find_body(writer, op, name, args)
    inner = Writer(
        writer.tape, {}, find_static(body.get_operations()), write_call, writer.trips * (turns or 1)
    )
    inner.is_looping = writer.is_looping or turns is not None
    inner.around_layer = writer.tape.layer_of(op, writer.around_layer)
    inner.around_place = writer.tape.place_of(op, writer.around_place)
    inner.phase = phase
    for tensor, known in zip(body.inputs, args, strict=False):
        inner.env[key_of(tensor)] = known
    given = {tensor.op for tensor in body.inputs}
    for part in body.get_operations():
        if part.type.startswith(_PLUMBING) or (phase == "backward" and original(part) is None):
            # This op was made with the gradient, so that its own line would be the optimizer's.
            writer.tape.set_place(part, inner.around_place)
    for part in body.get_operations():
        if part in inner.static or part in given or part.type == "NoOp" or is_host(part):
            continue
        given_to = [inner.known(tensor) for tensor in part.inputs]
        if given_to and all(isinstance(known, Literal) for known in given_to) and not part.op_def.is_stateful:
            _bind(inner, part, [Literal(None)] * len(part.outputs))  # a counter, or a shape
            continue
        inner.write([(part, phase)])
    return [inner.known(tensor) for tensor in body.outputs]


def find_body(writer: Writer, op: Any, name: str, args: Sequence[Known]) -> Any:
    """The function's graph, with the shapes of this call."""
    function = _find_function(writer, op, name)
    body = function.graph
    writer.tape.graphs.append(body)
    if all(tensor.shape.is_fully_defined() for part in body.get_operations() for tensor in part.outputs):
        return body
    shapes = []
    for tensor, known in zip(body.inputs, args, strict=False):
        is_tensor = isinstance(known, Ref) and tensor.dtype.name not in ("resource", "variant")
        shapes.append(tf.TensorShape(writer.tape.values[known.value].shape) if is_tensor else tensor.shape)  # type: ignore[union-attr]
    with op.graph.as_default():
        known_body = function_def_to_graph(function.cached_definition, input_shapes=shapes)
    by_name = {part.name: part for part in body.get_operations()}
    for part in known_body.get_operations():
        first = by_name.get(part.name)
        if first is not None:
            writer.tape.set_place(part, writer.tape.place_of(first, writer.around_place))
    return known_body


def _find_function(writer: Writer, op: Any, name: str) -> Any:
    """Looks in the op's graph, then in the bodies expanded so far: a copy of a function with other shapes lacks the functions it calls."""
    for graph in (op.graph, *reversed(writer.tape.graphs)):
        found = graph._get_function(name)
        if found is not None:
            return found
    place = writer.tape.place_of(op, writer.around_place)
    raise UserError(
        f"{place or op.name}: the body of {op.type}, the function {name!r}, is not in the graph.",
        "Build the model from Python rather than from a saved graph.",
    )


def _write_while(writer: Writer, op: Any, phase: Phase, args: tuple[Known, ...]) -> None:
    condition = _find_function(writer, op, op.get_attr("cond").name).graph
    body = _find_function(writer, op, op.get_attr("body").name).graph
    turns = count_turns(condition, body, args)
    if turns is None and original(op) is not None:
        # The gradient of a loop has as many iterations as the loop.
        turns = writer.tape.turns.get(original(op).name)
    if turns is not None:
        writer.tape.turns[op.name] = turns
    place = writer.tape.place_of(op, writer.around_place)
    if turns is None:
        writer.tape.notes.append(
            f"{place or op.name}: how often this loop turns is not known from the graph; it is counted once."
        )
    made = _inline(writer, op, op.get_attr("body").name, args, phase, 1 if turns is None else turns)
    results = [
        _final(body, i, args[i], turns) if isinstance(known, Literal) else known
        for i, known in enumerate(made)
    ]
    layer = writer.tape.layer_of(op, writer.around_layer)
    writer.tape.add_node(op, phase, args, (), layer, place, writer.trips)
    _bind(writer, op, results)


def count_turns(condition: Any, body: Any, args: Sequence[Known]) -> int | None:
    """The number of iterations of a loop that counts up to a known number; None for any other loop."""
    inputs = {tensor.op: i for i, tensor in enumerate(condition.inputs)}
    static = find_static(condition.get_operations())
    found = []
    for op in condition.get_operations():
        if op.type not in _COMPARISONS:
            continue
        counter = inputs.get(_through(op.inputs[0]).op)
        limit = _number(op.inputs[1], inputs, args, static)
        start = args[counter] if counter is not None else None
        step = _step(body, counter) if counter is not None else None
        if isinstance(start, Literal) and isinstance(start.value, int) and limit is not None and step:
            span = limit - start.value + _COMPARISONS[op.type]
            found.append(max(0, -(-span // step)))
    return min(found, default=None)


def _number(tensor: Any, inputs: dict[Any, int], args: Sequence[Known], static: frozenset[Any]) -> int | None:
    source = _through(tensor)
    if source.op in inputs:
        known = args[inputs[source.op]]
        return known.value if isinstance(known, Literal) and isinstance(known.value, int) else None
    found = number_of(source) if source.op in static else None
    return int(found) if found is not None and found.ndim == 0 else None


def _step(body: Any, position: int) -> int | None:
    """By how much a loop variable grows in one iteration."""
    made = _through(body.outputs[position]).op
    if made.type not in ("AddV2", "Add"):
        return None
    sides = [_through(tensor) for tensor in made.inputs]
    for one, other in (sides, reversed(sides)):
        amount = number_of(other)
        if one.op is body.inputs[position].op and amount is not None and amount.ndim == 0:
            return int(amount)
    return None


def _final(body: Any, position: int, start: Known, turns: int | None) -> Literal:
    step = _step(body, position)
    if isinstance(start, Literal) and isinstance(start.value, int) and step is not None and turns is not None:
        return Literal(start.value + step * turns)
    return Literal(None)


def _through(tensor: Any) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _write_branches(writer: Writer, op: Any, phase: Phase, args: tuple[Known, ...]) -> None:
    names = (
        [function.name for function in op.get_attr("branches")]
        if "Case" in op.type
        else [op.get_attr("then_branch").name, op.get_attr("else_branch").name]
    )
    made = [_inline(writer, op, name, args[1:], phase) for name in names]
    layer = writer.tape.layer_of(op, writer.around_layer)
    place = writer.tape.place_of(op, writer.around_place)
    writer.tape.add_node(op, phase, args, (), layer, place, writer.trips)
    best = max(made, key=lambda branch: sum(isinstance(known, Ref) for known in branch))
    _bind(writer, op, best)
    if phase != "optimizer":
        writer.tape.notes.append(f"{place or op.name}: all branches of this condition are counted.")
