"""Writes the ops of a TensorFlow step as nodes and values, with functions and loops expanded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from portwright.graph.graph import ITEM_BYTES, Kind, Node, Phase, Ref, Value
from portwright.tensorflow.capturing.phases import is_variable, original
from portwright.tensorflow.capturing.places import OpPlaces
from portwright.tensorflow.capturing.scopes import Scopes
from portwright.tensorflow.capturing.shapes import Literal, UnknownShape, literal_of, number_of
from portwright.watching.place import Place

# Ops whose result is their first input, unchanged.
PASSING = frozenset(
    [
        "Identity",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
        "ReadVariableOp",
        "EnsureShape",
        "PlaceholderWithDefault",
        "Enter",
        "Exit",
        "NextIteration",
        "RefEnter",
        "RefExit",
        "RefIdentity",
    ]
)
_VIEWS = ("Reshape", "Squeeze", "ExpandDims")
_REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min", "All", "Any")
_KEPT_ATTRIBUTES = frozenset(
    [
        "transpose_a",
        "transpose_b",
        "adj_x",
        "adj_y",
        "strides",
        "padding",
        "data_format",
        "dilations",
        "ksize",
        "axis",
        "keep_dims",
        "equation",
        "is_training",
        "epsilon",
        "explicit_paddings",
        "batch_dims",
        "num_split",
        "N",
        "shrink_axis_mask",
        "new_axis_mask",
        "begin_mask",
        "end_mask",
        "ellipsis_mask",
        "sorted",
        "exclusive",
        "reverse",
        "alpha",
        "message",
    ]
)

_ACTING = (
    "tf.PyFunc",
    "tf.EagerPyFunc",
    "tf.LoopCond",
    "tf.Assign",
    "tf.Apply",
    "tf.SparseApply",
    "tf.Scatter",
    "tf.Merge",
)
# Op type: the number of its results that matter; those after them are scratch memory of one kind of processor.
_RESULTS = {"FusedBatchNormV3": 5, "FusedBatchNormGradV3": 3}

Key = tuple[Any, int]  # a tensor: its op, and which of its results
# A tensor's value in the graph, its constant on the host, or None (such as for a handle).
Known = Ref | Literal | None


class TensorFlowTape:
    """Collects values and nodes in the order in which they are written."""

    def __init__(self, places: OpPlaces, scopes: Scopes) -> None:
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.notes: list[str] = []
        self.guesses: dict[str, tuple[int, ...]] = {}  # tensor: the shape assumed where the graph says none
        self.places, self.scopes = places, scopes
        self.variables: dict[str, int] = {}  # name of the variable's op: its value
        self.layer_of_variable: dict[str, str] = {}
        self.graphs: list[Any] = []  # bodies of the functions that were expanded
        self.turns: dict[str, int] = {}  # loop: its number of iterations
        self.looped: set[int] = set()  # nodes inside a loop: the next iteration may read their results
        self._node_of: dict[Any, int] = {}  # op: its node
        self._place_of: dict[Any, Place | None] = {}
        self._layer_of: dict[Any, str] = {}

    def shape_of(self, tensor: Any) -> tuple[int, ...] | None:
        """A tensor's shape, known or assumed; None without either."""
        if tensor.shape.is_fully_defined():
            return tuple(tensor.shape.as_list())
        return self.guesses.get(tensor.name)

    def add_value(
        self,
        shape: tuple[int, ...],
        dtype: str,
        kind: Kind = "activation",
        name: str = "",
        base: int | None = None,
        requires_grad: bool = False,
    ) -> Ref:
        index = len(self.values)
        self.values.append(
            Value(index, shape, dtype, kind, name, index if base is None else base, requires_grad)
        )
        return Ref(index)

    def add_node(
        self,
        op: Any,
        phase: Phase,
        args: tuple[Any, ...],
        outputs: tuple[int, ...],
        module: str,
        place: Place | None,
        trips: int = 1,
    ) -> None:
        inputs = tuple(dict.fromkeys(arg.value for arg in args if isinstance(arg, Ref)))
        args = tuple(arg.value if isinstance(arg, Literal) else arg for arg in args)
        kwargs = _attributes(op)
        if trips != 1:
            kwargs["trips"] = trips
        odd = {t.dtype.name for t in (*op.inputs, *op.outputs)} - ITEM_BYTES.keys() - {"resource", "variant"}
        if odd:
            kwargs["other_dtypes"] = tuple(sorted(odd))
        forward = -1
        if phase == "backward" and original(op) is not None:
            forward = self._node_of.get(original(op), -1)
        index = len(self.nodes)
        self._node_of[op] = index
        self.nodes.append(
            Node(index, f"tf.{op.type}", phase, args, kwargs, inputs, outputs, module, place, "", forward)
        )

    def add_constant(self, tensor: Any, phase: Phase, layer: str, place: Place | None) -> Ref:
        """Adds a tensor that the compiler folds to a constant, where it is first read."""
        ref = self.add_value(tuple(tensor.shape.as_list()), tensor.dtype.name)
        layer, place = self.layer_of(tensor.op, layer), self.place_of(tensor.op, place)
        self.nodes.append(Node(len(self.nodes), "tf.Const", phase, (), {}, (), (ref.value,), layer, place))
        return ref

    def drop_dead(self, wanted: set[int]) -> None:
        """Removes nodes that neither an update nor a value in `wanted` needs, such as the gradient of the batch inside a function."""
        wanted, live = set(wanted), set()
        for node in reversed(self.nodes):
            made = {self.values[value].base for value in node.outputs} | set(node.outputs)
            acts = not node.outputs or node.op.startswith(_ACTING) or node.index in self.looped
            if acts or made & wanted:
                live.add(node.index)
                wanted.update(node.inputs)
                wanted.update(self.values[value].base for value in node.inputs)
        numbers = {node.index: number for number, node in enumerate(n for n in self.nodes if n.index in live)}
        self.nodes = [
            replace(node, index=numbers[node.index], forward=numbers.get(node.forward, -1))
            for node in self.nodes
            if node.index in live
        ]

    def place_of(self, op: Any, around: Place | None) -> Place | None:
        """The line of an op. A gradient op has its forward op's; an op inside a function that has no line has the call's."""
        if op not in self._place_of:
            first = original(op)
            self._place_of[op] = (
                self.place_of(first, around) if first is not None else self.places.find(op) or around
            )
        return self._place_of[op]

    def set_place(self, op: Any, place: Place | None) -> None:
        """Sets the place of an op that no user line made, such as a copy."""
        self._place_of[op] = place

    def layer_of(self, op: Any, around: str) -> str:
        if op not in self._layer_of:
            first = original(op)
            if first is not None:
                found = self.layer_of(first, around)
            else:
                found = self.scopes.of_op(op.name) or around or self._layer_of_weights(op)
            self._layer_of[op] = found
        return self._layer_of[op]

    def _layer_of_weights(self, op: Any) -> str:
        """The layer whose weight an op reads, for an op outside of every scope."""
        for tensor in op.inputs:
            source = tensor.op
            if source.type == "ReadVariableOp":
                source = source.inputs[0].op
            if source.name in self.layer_of_variable:
                return self.layer_of_variable[source.name]
        return ""


WriteCall = Callable[["Writer", Any, Phase, tuple[Known, ...]], bool]
"""Writes a call of a function with the function's own ops; False of an op that calls none."""


class Writer:
    """Writes one graph, or the body of a function, onto a tape."""

    def __init__(
        self,
        tape: TensorFlowTape,
        env: dict[Key, Known],
        static: Iterable[Any],
        write_call: WriteCall,
        trips: int = 1,
    ) -> None:
        self.tape, self.env, self.static, self.trips = tape, env, frozenset(static), trips
        self.write_call = write_call
        self.around_layer = ""
        self.around_place: Place | None = None
        self.phase: Phase = "forward"
        self.has_old_loops = self.is_looping = False

    def write(self, ops: Iterable[tuple[Any, Phase]]) -> None:
        ops = list(ops)
        self.has_old_loops = self.has_old_loops or any(op.type == "LoopCond" for op, _ in ops)
        for op, phase in ops:
            self.write_op(op, phase)

    def known(self, tensor: Any) -> Known:
        key = key_of(tensor)
        if key not in self.env:
            self.env[key] = self._first_seen(tensor)
        return self.env[key]

    def _first_seen(self, tensor: Any) -> Known:
        op = tensor.op
        if is_variable(op):
            index = self.tape.variables.get(op.name)
            return None if index is None else Ref(index)
        if op not in self.static:
            return None  # a loop's back edge, or a handle of something other than a variable
        literal = literal_of(tensor)
        if literal is None and tensor.dtype.name in ITEM_BYTES and tensor.shape.is_fully_defined():
            return self.tape.add_constant(tensor, self.phase, self.around_layer, self.around_place)
        return literal

    def write_op(self, op: Any, phase: Phase) -> None:
        self.phase = phase
        args = tuple(self.known(tensor) for tensor in op.inputs)
        loops = loops_around(op) if self.has_old_loops else []
        if loops and write_in_loop(self, op, phase, args, loops):
            return
        if op.type in PASSING or (op.type in _REDUCTIONS and _keeps_shape(op)):
            self.env[op, 0] = args[0] if args else None
            return
        if op.type == "IdentityN":
            for tensor, given in zip(op.outputs, args, strict=True):
                self.env[key_of(tensor)] = given
            return
        if self.write_call(self, op, phase, args):
            return
        self.write_plain(op, phase, args)

    def write_plain(self, op: Any, phase: Phase, args: tuple[Known, ...]) -> None:
        """One node for one op."""
        place = self.tape.place_of(op, self.around_place)
        layer = self.tape.layer_of(op, self.around_layer)
        if phase == "optimizer" and not layer and self.tape.nodes:
            layer = self.tape.nodes[-1].module  # an update of no weight belongs to the op before it
        made: list[int] = []
        grows = any(isinstance(arg, Ref) and self.tape.values[arg.value].requires_grad for arg in args)
        for position, tensor in enumerate(op.outputs):
            ref = self._make(op, tensor, position, args, phase, place, grows)
            self.env[key_of(tensor)] = ref
            if isinstance(ref, Ref):
                made.append(ref.value)
        if self.is_looping:
            self.tape.looped.add(len(self.tape.nodes))
        self.tape.add_node(op, phase, args, tuple(made), layer, place, self.trips)

    def _make(
        self,
        op: Any,
        tensor: Any,
        position: int,
        args: tuple[Known, ...],
        phase: Phase,
        place: Place | None,
        grows: bool,
    ) -> Known:
        dtype = tensor.dtype.base_dtype.name
        if dtype == "variant":
            return list_value(self, op, args)
        if dtype not in ITEM_BYTES or position >= _RESULTS.get(op.type, len(op.outputs)):
            return None
        shape = self.tape.shape_of(tensor)
        if shape is None:
            if phase == "optimizer":
                return None  # `count_update` counts it by the parameters' sizes
            raise UnknownShape(tensor, place)
        first = args[0] if args else None
        base = first.value if op.type in _VIEWS and isinstance(first, Ref) else None
        if base is not None:
            base = self.tape.values[base].base
        return self.tape.add_value(shape, dtype, base=base, requires_grad=grows and phase == "forward")


def key_of(tensor: Any) -> Key:
    return tensor.op, tensor.value_index


def list_value(writer: Writer, op: Any, args: tuple[Known, ...]) -> Known:
    """Adds a value for a list of tensors: one element for each iteration of the loop around it."""
    values = writer.tape.values
    if op.type == "TensorListFromTensor" and isinstance(args[0], Ref):
        whole = values[args[0].value]
        return writer.tape.add_value(whole.shape, whole.dtype, base=whole.base)
    if op.type in ("TensorListPushBack", "TensorListSetItem"):
        item = args[1] if op.type == "TensorListPushBack" else args[2]
        if isinstance(item, Ref):
            element = values[item.value]
            if values[element.base].kind == "parameter":  # the same weight in every iteration
                return writer.tape.add_value(element.shape, element.dtype, base=element.base)
            return writer.tape.add_value((writer.trips, *element.shape), element.dtype)
        return args[0]
    first = args[0] if args else None
    return first if isinstance(first, Ref) else None


def _keeps_shape(op: Any) -> bool:
    """Whether an op is a sum over no dimension, as in gradients of broadcasting ops."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    return bool(
        before.is_fully_defined()
        and after.is_fully_defined()
        and before == after
        and before.num_elements() != 1
    )


def _attributes(op: Any) -> dict[str, Any]:
    """The attributes of an op that its kernel or its operation count may depend on."""
    found: dict[str, Any] = {}
    for name in _attribute_names(op):
        value = op.get_attr(name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


_NAMES: dict[
    str, tuple[str, ...]
] = {}  # op type: its attributes; a cache, since asking an op for them is slow


def _attribute_names(op: Any) -> tuple[str, ...]:
    if op.type not in _NAMES:
        _NAMES[op.type] = tuple(attr.name for attr in op.op_def.attr if attr.name in _KEPT_ATTRIBUTES)
    return _NAMES[op.type]


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
    """Writes an op as one node that counts for all iterations of its loops; returns False for an op that needs no such count."""
    if op.type in ("Merge", "RefMerge"):  # merges the first iteration with the later ones, not two branches
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
    """The forward loop whose gradient a loop computes."""
    return loop.grad_state.forward_context if loop.grad_state is not None else loop


def count_turns(loop: Any) -> int | None:
    """The number of iterations of a loop that counts up to a known number; None for any other loop."""
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
    """By how much a loop's counter grows in one iteration."""
    again = merge.inputs[1].op
    made = again.inputs[0].op if again.type == "NextIteration" else again
    if made.type not in ("Add", "AddV2"):
        return None
    amounts = [_entered(tensor) for tensor in made.inputs]
    return next((amount for amount in amounts if amount is not None), None)
