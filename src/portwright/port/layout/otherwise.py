"""What the script's loop does otherwise than run(), though its statements look alike: each is a finding, or a refusal."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from portwright.port.layout.account import NOT_SAID
from portwright.port.layout.anatomy import IN_PLACE, definitions_of, kind_of, path_to, runs_with_update
from portwright.port.layout.plan import Plan
from portwright.port.layout.program import Frame, Item, Line, Program, flatten
from portwright.port.layout.slices import is_plain
from portwright.port.layout.units import RefusalError
from portwright.port.tree import FUNCTIONS

_MAX_DEPTH = 3
_WITH_WEIGHTS = ("Linear", "Bilinear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "BatchNorm", "LayerNorm", "GroupNorm", "MultiheadAttention", "Transformer", "Parameter", "Sequential", "PReLU")  # fmt: skip


def refuse_rounds(plan: Plan) -> None:
    """Refuses what each epoch makes otherwise than the one before: run() makes model, data and optimizer once."""
    anatomy, loop = plan.anatomy, plan.anatomy.epoch_loop
    if loop is None:
        return
    counters = (
        plan.slicer.mentions(loop.node.target, loop.frame)[1] if isinstance(loop.node, ast.For) else set()
    )
    assert anatomy.optimizer is not None
    made = next(i for value, _, i in definitions_of(anatomy, anatomy.optimizer) if value is not None)
    if made not in anatomy.setup or made in anatomy.setup_of_epoch:
        raise RefusalError(
            "the optimizer is made anew in each epoch, and run() makes one",
            IN_PLACE,
            made.frame.unit,
            made.node,
        )
    data = [] if plan.by_hand is not None else [*plan.train.lines, *plan.evaluated.lines]
    for line in [*plan.model.lines, *data]:
        if line not in anatomy.setup_of_epoch:
            continue
        counted = sorted(v.name for v in plan.slicer.of_line(line)[0] & counters)
        if counted or not is_plain(line) or plan.slicer.effects(line):
            why = (
                f"this depends on '{counted[0]}', which counts epochs"
                if counted
                else "this is done anew in each epoch"
            )
            raise RefusalError(
                f"{why}, and run() makes model and data once", IN_PLACE, line.frame.unit, line.node
            )


def tell_differences(plan: Plan) -> None:
    _tell_clearing(plan)
    _tell_modes(plan)
    _tell_weights_outside(plan)


def _tell_clearing(plan: Plan) -> None:
    """Gradients that stay from one update to the next."""
    anatomy = plan.anatomy
    for item in flatten([*anatomy.step, *anatomy.after_step]):
        if not isinstance(item, Line):
            continue
        for call, _, outer in _calls(item.node, item.frame, plan.program):
            is_clearing = isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
            if is_clearing and (plan.num_accumulated > 1 or runs_with_update(anatomy, item, outer)):
                return
        if any(
            isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Store)
            for n in ast.walk(item.node)
        ):
            return  # p.grad = None
    message = "the gradients are not cleared before each backward(), and run() clears them for each update"
    plan.account.leave(
        anatomy.backward.frame.unit,
        anatomy.backward.node,
        message,
        f"Call zero_grad() in each step. {IN_PLACE}",
        NOT_SAID,
    )


def _tell_weights_outside(plan: Plan) -> None:
    """Another network in the step, whose weights run() would neither train nor save."""
    names = plan.program.entry.names
    for var in plan.free:
        kind = kind_of(plan.anatomy, var)
        frozen = any(
            "requires_grad" in ast.dump(line.node) and var in plan.slicer.of_line(line)[0]
            for line in plan.model.lines
        )
        made = next((item for value, _, item in definitions_of(plan.anatomy, var) if value is not None), None)
        if made is None or frozen or not names.is_module_class(kind or None) or not _has_weights(plan, kind):
            continue
        plan.account.leave(
            made.frame.unit, made.node, f"{var.name} has weights outside of the model, which run() neither trains nor saves",
            "Make it a part of the model, or freeze it with requires_grad_(False).", NOT_SAID,
        )  # fmt: skip


def _has_weights(plan: Plan, kind: str, depth: int = 3) -> bool:
    """Whether a class of modules makes weights: a layer of torch.nn, or a class of the project that makes some."""
    if kind.startswith("torch.nn."):
        return kind.rpartition(".")[2].startswith(_WITH_WEIGHTS)
    found = plan.program.workspace.definition(kind)
    if found is None or depth == 0:
        return False
    unit, node = found
    made = [unit.names.resolve(c.func) or "" for c in ast.walk(node) if isinstance(c, ast.Call)]
    return any(_has_weights(plan, each, depth - 1) for each in made if each != kind)


def _tell_modes(plan: Plan) -> None:
    """A model, or a part of it, that the script trains in eval mode: run() trains all of it in train mode."""
    anatomy = plan.anatomy
    before = [line for line in anatomy.setup if line not in anatomy.setup_of_epoch]
    head = [line for line in anatomy.setup if line in anatomy.setup_of_epoch]
    ways: list[list[Item]] = [[*before, *head, *anatomy.step], [*anatomy.after_step, *anatomy.step]]
    if anatomy.epoch_loop is not None:
        ways.append([*anatomy.after_step, *anatomy.after_epoch, *head, *anatomy.step])
    for way in ways:
        last: tuple[Line, ast.Call, ast.Call] | None = None
        for item in (i for i in flatten(way) if isinstance(i, Line) and i.target is None):
            for call, frame, outer in _calls(item.node, item.frame, plan.program):
                mode, runs = _mode_of(plan, call, frame, item.node), runs_with_update(anatomy, item, outer)
                if mode == "eval" and runs is not False:
                    last = item, call, outer
                elif mode == "train" and (
                    runs or (last and last[0] is item and _is_beside(item.node, outer, last[2]))
                ):
                    last = None
        if last is not None:
            item, call, _ = last
            text = " ".join(ast.unparse(call).split())
            plan.account.leave(
                item.frame.unit, item.node, f"the script trains in eval mode after {text}, and run() trains all of the model in train mode",
                "Call model.train() before each step; keep a part in eval mode by a train() method of its own.", NOT_SAID,
            )  # fmt: skip


def _mode_of(plan: Plan, call: ast.Call, frame: Frame, statement: ast.AST) -> str:
    """Whether a call puts the model in train mode, or it or a part of it in eval mode."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("train", "eval") or call.keywords:
        return ""
    if plan.program.reference(func.value, frame) == plan.anatomy.model:
        is_off = call.args and isinstance(call.args[0], ast.Constant) and not call.args[0].value
        return "eval" if func.attr == "eval" or is_off else "train"
    loops = [
        n for n in ast.walk(statement) if isinstance(n, ast.For) and ast.dump(n.target) == _stored(func.value)
    ]
    parts = [func.value, *(loop.iter for loop in loops)]
    roots = {var for part in parts for var in plan.slicer.roots(part, frame)}
    return "eval" if func.attr == "eval" and plan.anatomy.model in roots else ""


def _stored(node: ast.expr) -> str:
    return ast.dump(ast.Name(node.id, ast.Store())) if isinstance(node, ast.Name) else ""


def _is_beside(statement: ast.AST, node: ast.AST, other: ast.AST) -> bool:
    """Whether a node stands in the branch that another one stands in."""
    branches = [b for n in path_to(statement, node) if isinstance(n, ast.If) for b in (n.body, n.orelse)]
    own = [b for b in branches if any(node in ast.walk(s) for s in b)]
    return all(any(other in ast.walk(s) for s in b) for b in own)


def _calls(
    node: ast.AST, frame: Frame, program: Program, seen: Sequence[ast.AST] = (), outer: ast.Call | None = None
) -> Iterator[tuple[ast.Call, Frame, ast.Call]]:
    """Calls in the order of the text, those in functions of the project included, with the statement's own that leads there."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node not in seen:
        return
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, frame, program, seen, outer)
    if isinstance(node, ast.Call):
        yield node, frame, outer or node
        found = program.callee(node, frame) if len(seen) < _MAX_DEPTH else None
        if found is not None and found[1] not in seen:
            inner = program.enter(node, *found, frame)
            yield from _calls(found[1], inner, program, (*seen, found[1]), outer or node)
