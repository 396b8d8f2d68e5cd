"""A training step of a model function as a Graph of the same types as torch's capture, so that one planner serves both."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.graph.graph import ITEM_BYTES, Graph, Module, Ref, Value, mark_repeats
from portwright.tensorflow.capturing.build import BuiltStep, GetBatch, MakeSpec, build_step, uncollected
from portwright.tensorflow.capturing.calls import write_call
from portwright.tensorflow.capturing.optimizer import (
    CountedOptimizer,
    count_update,
    name_optimizer,
    share_slots,
)
from portwright.tensorflow.capturing.phases import Step, find_step, is_variable
from portwright.tensorflow.capturing.places import OpPlaces
from portwright.tensorflow.capturing.scopes import Scopes, layer_kinds
from portwright.tensorflow.capturing.shapes import UnknownShape, check_inputs, explain
from portwright.tensorflow.capturing.tape import TensorFlowTape, Writer, key_of

Shape = tuple[int, ...]

_PREFIX = "portwright_guess"


def _first(op: Any) -> Shape:
    return tuple(op.inputs[0].shape.as_list())


# Op type: a function that gives the shapes of the op's results from those of its inputs.
_LARGEST_SHAPES: dict[str, Callable[[Any], list[Shape]]] = {
    "Where": lambda op: [(math.prod(_first(op)), len(_first(op)))],
    "Unique": lambda op: [_first(op), _first(op)],
    "UniqueV2": lambda op: [_first(op), (math.prod(_first(op)[:1]),)],
    "UniqueWithCounts": lambda op: [_first(op), _first(op), _first(op)],
    "ListDiff": lambda op: [_first(op), _first(op)],
    "DynamicPartition": lambda op: [
        (math.prod(op.inputs[1].shape.as_list()), *_first(op)[op.inputs[1].shape.rank :]) for _ in op.outputs
    ],
}


def guess_shapes(graph: Any) -> dict[str, Shape]:
    """Shapes by tensor name, assuming that each op that selects elements by their value selects all; {} without such ops."""
    replaced: dict[str, list[Shape]] = {}
    current, found = graph, {}
    while True:
        new = {
            op.name: _LARGEST_SHAPES[op.type](op)
            for op in current.get_operations()
            if op.type in _LARGEST_SHAPES
            and op.name not in replaced
            and not op.name.startswith(_PREFIX)
            and all(tensor.shape.is_fully_defined() for tensor in op.inputs)
        }
        if not new:
            break
        replaced.update(new)
        current = _copy(graph, replaced)
        found = {
            tensor.name: tuple(tensor.shape.as_list())
            for op in current.get_operations()
            for tensor in op.outputs
            if tensor.shape.is_fully_defined()
        }
        for name, shapes in replaced.items():
            found.update({f"{name}:{index}": shape for index, shape in enumerate(shapes)})
    return found


def _copy(graph: Any, replaced: Mapping[str, list[Shape]]) -> Any:
    definition = graph.as_graph_def()
    renamed: dict[str, str] = {}
    for name, shapes in replaced.items():
        op = graph.get_operation_by_name(name)
        for index, shape in enumerate(shapes):
            stand_in = f"{_PREFIX}/{name}_{index}"
            node = definition.node.add(name=stand_in, op="Placeholder")
            node.attr["dtype"].type = op.outputs[index].dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
            renamed[f"{name}:{index}" if index else name] = stand_in
    for node in definition.node:
        for position, source in enumerate(node.input):
            if source in renamed:
                node.input[position] = renamed[source]
    copied = tf.Graph()
    with copied.as_default():
        tf.import_graph_def(definition, name="")
    return copied


@dataclass(frozen=True)
class Captured:
    """A captured step, and its optimizer's state and work."""

    graph: Graph
    optimizer: CountedOptimizer


def capture_step(
    get_batch: GetBatch,
    make_spec: MakeSpec,
    *,
    mode: str = "train",
    batch_size: int | None = None,
    described: Any = None,
    root: Path | None = None,
) -> Captured:
    """Builds the step's graph and writes it down; neither weights nor a batch are made.

    UserError for a tensor whose size is not known, since every number of a plan would be wrong.
    """
    start = time.perf_counter()
    with uncollected(), warnings.catch_warnings():
        # The warning is about memory for the conversion, and nothing is run here.
        warnings.filterwarnings("ignore", message="Converting sparse IndexedSlices")
        built = build_step(get_batch, make_spec, mode=mode, batch_size=batch_size, described=described)
        return capture_built(built, root=root, start=start)


def capture_built(built: BuiltStep, *, root: Path | None = None, start: float | None = None) -> Captured:
    """Captures a graph that is built already, such as an Estimator's."""
    start = time.perf_counter() if start is None else start
    places = OpPlaces(root)
    with built.graph.as_default():
        return _Capture(built, places).run(start)


class _Capture:
    def __init__(self, built: BuiltStep, places: OpPlaces) -> None:
        self.built, self.places = built, places
        cut = frozenset(key_of(tensor) for tensor in built.inputs.values())
        self.step: Step = find_step(built.fetches, built.loss, cut, frozenset({built.global_step}))
        self.trainable = {
            v.op.name: v for v in built.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        }
        self.touched = _find_variables(self.step)
        self.slots: dict[str, Any] = {}
        own: list[str] = []
        for name, (op, phases) in self.touched.items():
            if name in self.trainable or name == built.global_step:
                continue
            # A scalar, such as a loss scale, belongs to no layer, wherever it is read.
            if phases == {"optimizer"} or not _variable_spec(op, None)[0]:
                self.slots[name] = op
            else:
                own.append(name)
        self.model_variables = [*self.trainable, *own]
        self.scopes = Scopes(self.model_variables)
        self.tape = TensorFlowTape(places, self.scopes)

    def run(self, start: float) -> Captured:
        built, tape = self.built, self.tape
        used = {key_of(tensor) for op, _ in self.step.ops for tensor in op.inputs}
        inputs = {
            name: t for name, t in built.inputs.items() if key_of(t) in used or t.shape.is_fully_defined()
        }
        check_inputs({n: t for n, t in inputs.items() if key_of(t) in used}, self.places, built.graph)
        trains = built.mode == "train"
        try:
            writer, parameters = self._write(inputs, trains)
        except UnknownShape as unknown:
            guesses = guess_shapes(built.graph)
            if not guesses:
                raise explain(unknown, self.places) from None
            self.tape = tape = TensorFlowTape(self.places, self.scopes)
            tape.guesses = guesses
            try:
                writer, parameters = self._write(inputs, trains)
            except UnknownShape as still:
                raise explain(still, self.places) from None
            self._note_guesses()
        ends = [writer.known(tensor) for op in built.fetches for tensor in op.outputs]
        tape.drop_dead({end.value for end in ends if isinstance(end, Ref)})
        optimizer = self._optimizer(parameters) if trains else CountedOptimizer("")
        loss = writer.known(built.loss) if built.loss is not None else None
        graph = Graph(
            tuple(tape.nodes),
            tuple(tape.values),
            mark_repeats(self._modules(), tape.nodes, tape.values),
            (),
            next((int(t.shape[0]) for t in inputs.values() if t.shape.rank), 1),
            trains,
            loss.value if isinstance(loss, Ref) else -1,
            optimizer.name,
            self._info(start),
        )
        return Captured(graph, optimizer)

    def _write(self, inputs: Mapping[str, Any], trains: bool) -> tuple[Writer, dict[str, Value]]:
        env: dict[Any, Any] = {}
        for name, tensor in inputs.items():
            dtype = tensor.dtype.name
            if dtype in ITEM_BYTES:
                env[key_of(tensor)] = self.tape.add_value(tuple(tensor.shape.as_list()), dtype, "input", name)
        parameters = self._add_variables(trains)
        writer = Writer(self.tape, env, self.step.static, write_call)
        writer.write(self.step.ops)
        return writer, parameters

    def _note_guesses(self) -> None:
        for op, _ in self.step.ops:
            if op.type in _LARGEST_SHAPES and op.outputs[0].name in self.tape.guesses:
                place = self.tape.place_of(op, None)
                self.tape.notes.append(
                    f"{place or op.name}: how much {op.type} gives depends on values; the most is assumed, all of it."
                )

    def _add_variables(self, trains: bool) -> dict[str, Value]:
        """Adds a value for each variable of the model; a variable that an update op writes counts as trained."""
        tape, found = self.tape, {}
        for name in self.model_variables:
            shape, dtype = _variable_spec(
                self.built.graph.get_operation_by_name(name), self.trainable.get(name)
            )
            if shape is None or dtype not in ITEM_BYTES:
                raise UserError(
                    f"the variable {name!r} has the shape {shape} and the type {dtype}.",
                    "Give it a fixed shape and a numeric type.",
                )
            path, leaf = self.scopes.of_variable(name), name.rpartition("/")[2]
            is_parameter = name in self.trainable
            is_trained = is_parameter and trains and "optimizer" in self.touched.get(name, (None, set()))[1]
            ref = tape.add_value(
                shape,
                dtype,
                "parameter" if is_parameter else "buffer",
                f"{path}.{leaf}" if path else leaf,
                requires_grad=is_trained,
            )
            tape.variables[name] = ref.value
            tape.layer_of_variable[name] = path
            if is_trained:
                found[name] = tape.values[ref.value]
        return found

    def _optimizer(self, parameters: Mapping[str, Value]) -> CountedOptimizer:
        types = [node.op.removeprefix("tf.") for node in self.tape.nodes if node.phase == "optimizer"]
        found = {name: _variable_spec(op, None) for name, op in self.slots.items()}
        specs = {name: (shape or (), dtype) for name, (shape, dtype) in found.items()}
        return CountedOptimizer(
            name_optimizer(types, self.built.optimizers),
            slots=share_slots(specs, parameters),
            flops=count_update(self.tape.nodes, self.tape.values),
        )

    def _modules(self) -> list[Module]:
        kinds = layer_kinds(self.built.layers, self.scopes)
        own: Counter[str] = Counter()
        for value in self.tape.values:
            if value.kind == "parameter":
                own[value.name.rpartition(".")[0]] += value.num_elements
        return [Module(path, kinds.get(path, ""), own[path]) for path in self.scopes.paths]

    def _info(self, start: float) -> dict[str, Any]:
        guards = any(
            node.op in ("tf.IsFinite", "tf.IsNan") and node.phase == "optimizer" for node in self.tape.nodes
        )
        return {
            "framework": "tensorflow",
            "tensorflow": tf.__version__,
            "mode": self.built.mode,
            "host_ops": self.step.num_host,
            "folded_ops": len(self.step.static),
            "guards_update": guards,  # loss scaling or a check of gradients skips an update
            "notes": list(dict.fromkeys(self.tape.notes)),
            "seconds": time.perf_counter() - start,
        }


def _find_variables(step: Step) -> dict[str, tuple[Any, set[str]]]:
    """The variables that the step reads or writes, each with the phases in which it does."""
    found: dict[str, tuple[Any, set[str]]] = {}
    for op, phase in step.ops:
        for tensor in op.inputs:
            if is_variable(tensor.op):
                found.setdefault(tensor.op.name, (tensor.op, set()))[1].add(phase)
    return found


def _variable_spec(op: Any, variable: Any) -> tuple[tuple[int, ...] | None, str]:
    shape = variable.shape if variable is not None else tf.TensorShape(op.get_attr("shape"))
    dtype = variable.dtype.base_dtype if variable is not None else op.get_attr("dtype")
    return (tuple(shape.as_list()) if shape.is_fully_defined() else None), dtype.name
