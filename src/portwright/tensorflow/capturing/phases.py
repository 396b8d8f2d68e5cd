"""Which ops of a TensorFlow graph belong to a step, and to which phase: forward, backward or the optimizer.

The search starts at the ops that an Estimator would run and follows inputs and control inputs back to the tensors of the
input function. Gradient ops name the op whose gradient they compute; ops that depend on gradients are the optimizer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portwright.graph.graph import Phase
from portwright.tensorflow.graph_walk import reach

_GRADIENTS = re.compile(r"(^|/)(gradients(_\d+)?|gradient_tape)/")
_HOST_TYPES = frozenset(
    [
        "Assert",
        "Print",
        "PrintV2",
        "PrintV3",
        "CheckNumerics",
        "CheckNumericsV2",
        "IsVariableInitialized",
        "VarIsInitializedOp",
        "Timestamp",
        "SaveV2",
        "RestoreV2",
        "MergeV2Checkpoints",
        "ShardedFilename",
        "WriteSummary",
        "FlushSummaryWriter",
        "CreateSummaryFileWriter",
        "SummaryWriter",
        "StringFormat",
        "DebugIdentityV2",
        "DebugNumericSummaryV2",
    ]
)
_HANDLES = ("variant", "resource")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable", "TemporaryVariable")
_SOURCES = (
    "IteratorGetNext",
    "IteratorGetNextSync",
    "Placeholder",
    "PlaceholderV2",
    "QueueDequeueManyV2",
    "QueueDequeueV2",
)


@dataclass(frozen=True)
class Step:
    """The ops of a step in the order in which they can run."""

    ops: tuple[tuple[Any, Phase], ...]
    static: frozenset[Any]  # ops whose results are known before the step runs
    num_host: int  # asserts, summaries, counters and schedules: left out


def is_host(op: Any) -> bool:
    """Whether an op serves people or files rather than the step's numbers."""
    return op.type in _HOST_TYPES or "Summary" in op.type


def is_variable(op: Any) -> bool:
    return op.type in _VARIABLES


def is_source(op: Any) -> bool:
    """Whether an op gives data that does not come from the graph itself."""
    return op.type in _SOURCES


def original(op: Any) -> Any:
    """The forward op whose gradient an op belongs to, or None; ops that a GradientTape made contain its name in theirs."""
    found = getattr(op, "_original_op", None)
    if found is None and "gradient_tape/" in op.name:
        name = op.name.partition("gradient_tape/")[2].rpartition("/")[0]
        try:
            return op.graph.get_operation_by_name(name) if name else None
        except KeyError:
            return None
    return found


def find_step(
    fetches: Sequence[Any], loss: Any, cut: frozenset[tuple[Any, int]], counters: frozenset[str]
) -> Step:
    """Sorts into phases all ops that `fetches` (ops) need, up to the tensors `cut`; `counters` are variables that only count steps."""
    reached, num_host = _reach(fetches, cut, counters)
    ordered = _order(reached)
    static = find_static(ordered)
    live = _find_live(reached, fetches, loss)
    kept = [op for op in ordered if op in live and op not in static and not is_variable(op)]
    schedules = _find_schedules(kept, static, counters)
    kept = [op for op in kept if op not in schedules]
    phases = _find_phases(kept, loss, cut)
    rank = {"forward": 0, "backward": 1, "optimizer": 2}
    kept.sort(key=lambda op: rank[phases[op]])  # stable: each phase keeps its order
    return Step(tuple((op, phases[op]) for op in kept), static, num_host + len(schedules))


def _reach(
    fetches: Iterable[Any], cut: frozenset[tuple[Any, int]], counters: frozenset[str]
) -> tuple[set[Any], int]:
    made = {op for op, _ in cut}

    def needed(op: Any) -> list[Any]:
        # An op that counts steps waits for the updates by control inputs: the step needs them.
        if op in made or is_host(op) or op.type in _SOURCES:
            return []
        return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]

    reached = reach(fetches, needed)
    hosts = {op for op in reached if is_host(op) or _counts(op, counters)}
    return reached - made - hosts, len(hosts)


def _order(reached: set[Any]) -> list[Any]:
    """Sorts ops so that inputs come first: mostly the order in which they were made, but TensorFlow 1's loops add inputs later."""
    made = sorted(reached, key=lambda op: op._id)
    if not any(op.type == "LoopCond" for op in made):
        return made
    ordered: dict[Any, None] = {}
    for end in made:
        pending = [end]
        seen: set[Any] = set()
        while pending:
            op = pending[-1]
            before = [
                tensor.op
                for tensor in op.inputs
                if tensor.op in reached
                and tensor.op not in ordered
                and tensor.op not in seen
                and tensor.op.type != "NextIteration"
            ]
            if op in ordered or (op in seen and not before) or not before:
                ordered.setdefault(op)
                pending.pop()
            else:
                seen.add(op)
                pending += before
    return list(ordered)


def _find_live(reached: set[Any], fetches: Sequence[Any], loss: Any) -> set[Any]:
    """The ops whose results reach a changed variable or the loss. Others are only control inputs: TensorFlow makes the gradients
    of a layer wait for one another, so that a session also computes the gradient of the batch, which no compiler keeps."""
    ends = [op for op in reached if _acts(op)]
    ends += [op for op in fetches if op.type != "NoOp"]
    return _ancestors([*ends, *([loss.op] if loss is not None else [])], reached)


def _acts(op: Any) -> bool:
    """Whether an op has an effect beside its results, such as writing a variable."""
    if op.type.startswith(("Assign", "Apply", "Scatter", "SparseApply", "ResourceApply", "ResourceScatter")):
        return True
    if op.type in ("While", "If", "Case", "StatefulPartitionedCall", "PyFunc", "EagerPyFunc"):
        return True
    return not op.outputs and op.type not in ("NoOp", "ControlTrigger")


def _counts(op: Any, counters: frozenset[str]) -> bool:
    """Whether an op adds to a step counter."""
    if not op.type.startswith("Assign") or not op.inputs:
        return False
    return op.inputs[0].op.name in counters


def find_static(ordered: list[Any]) -> frozenset[Any]:
    """The ops that a compiler folds: constants, and what is computed from constants and known shapes alone."""
    static: set[Any] = set()
    for op in ordered:
        if _is_static(op, static):
            static.add(op)
    return frozenset(static)


def _is_static(op: Any, static: set[Any]) -> bool:
    if op.type in ("Const", "VariableShape"):
        return True
    if op.type in ("Shape", "ShapeN", "Size", "Rank"):
        return all(tensor.shape.is_fully_defined() for tensor in op.inputs)
    if op.type in ("ZerosLike", "OnesLike"):
        return bool(op.inputs[0].shape.is_fully_defined()) and op.inputs[0].dtype.name not in _HANDLES
    return (
        bool(op.inputs)
        and all(tensor.op in static for tensor in op.inputs)
        and not op.op_def.is_stateful
        and not op.type.startswith(("Stateless", "Tensor", "Empty"))
        and op.type not in ("While", "If", "Case", "PartitionedCall", "Enter", "Switch", "Merge")
        and not any(tensor.dtype.name in _HANDLES for tensor in op.outputs)
    )


def _find_schedules(kept: list[Any], static: frozenset[Any], counters: frozenset[str]) -> set[Any]:
    """Ops computed from step counters alone, such as a learning rate: the host runs them once a step."""
    found: set[Any] = set()
    for op in kept:
        if op.type.startswith(("Assign", "ResourceApply", "Random", "Stateless")) or not op.inputs:
            continue
        sources = [tensor.op for tensor in op.inputs]
        counting = [s for s in sources if s in found or s.name in counters]
        if counting and all(s in static or s in counting for s in sources):
            found.add(op)
    return found


def _find_phases(kept: list[Any], loss: Any, cut: frozenset[tuple[Any, int]]) -> Mapping[Any, Phase]:
    inside = set(kept)
    before_loss = _ancestors([loss.op] if loss is not None else [], inside)
    gradients = {
        op
        for op in kept
        if op not in before_loss and (original(op) is not None or _GRADIENTS.search(op.name))
    }
    towards_gradients = _ancestors(gradients, inside) - before_loss
    phases: dict[Any, Phase] = {}
    behind: set[Any] = set()  # depends on a gradient
    fed: set[Any] = set()  # depends on the batch
    # Gradients of a GradientTape have no such attribute.
    are_marked = any(hasattr(op, "_original_op") for op in gradients)
    parameters = (tensor for op in kept if op.type == "ReadVariableOp" for tensor in op.outputs)
    parameter_shapes = {tuple(t.shape.as_list()) for t in parameters if t.shape.rank is not None}
    for op in kept:
        for tensor in op.inputs:
            source = tensor.op
            if source in behind or source in gradients:
                behind.add(op)
            if source in fed or is_source(source) or (source, tensor.value_index) in cut:
                fed.add(op)
        if op in before_loss or loss is None:
            phases[op] = "forward"
        elif op in gradients or op in towards_gradients:
            phases[op] = "backward"
        elif op in behind:
            is_part = not are_marked and _reads_activation(op, phases, parameter_shapes)
            phases[op] = "backward" if is_part else "optimizer"
        else:
            phases[op] = "forward" if op in fed else "optimizer"
    return phases


def _reads_activation(op: Any, phases: Mapping[Any, Phase], parameter_shapes: set[Any]) -> bool:
    """Whether an op still belongs to the backward pass: it reads a result of that pass whose shape no parameter has."""
    if op.type.startswith(("Resource", "Assign")):
        return False
    for tensor in op.inputs:
        is_sized = tensor.shape.rank and tensor.shape.is_fully_defined()
        if (
            phases.get(tensor.op) == "backward"
            and is_sized
            and tuple(tensor.shape.as_list()) not in parameter_shapes
        ):
            return True
    return False


def _ancestors(ops: Iterable[Any], inside: set[Any]) -> set[Any]:
    return reach(
        (op for op in ops if op in inside),
        lambda op: [tensor.op for tensor in op.inputs if tensor.op in inside],
    )
