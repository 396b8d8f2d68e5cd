"""The script's evaluation: its loader, and the accuracy that it counts, in the words of the training step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from portwright.port.layout.anatomy import Anatomy, is_device, unwrap_iterable
from portwright.port.layout.program import Frame, Line, Loop, Var, flatten
from portwright.port.layout.slices import Slicer
from portwright.port.layout.text import Naming, Renderer
from portwright.port.tree import pair

_MAX_DEPTH = 3


@dataclass
class Evaluation:
    """A loop over other data that calls the model without a backward()."""

    loop: ast.For
    frame: Frame
    loader: tuple[ast.expr, Frame]
    callers: list[Line]  # statements of the script that lead here
    before: list[Line] = field(default_factory=list)  # in the function, above the loop
    lines: list[Line] = field(default_factory=list)  # the loop's body
    same: dict[Var, Var] = field(
        default_factory=dict
    )  # variables that are the training step's, under other names
    labels: tuple[ast.expr, Frame] | None = None
    predictions: tuple[ast.expr, Frame] | None = None
    extra: list[Line] = field(default_factory=list)  # statements that only the metric needs


def find_evaluations(anatomy: Anatomy) -> list[Evaluation]:
    """Every evaluation that is reached after the step, or beside it."""
    found: list[Evaluation] = []
    places = [*anatomy.after_epoch, *anatomy.teardown, *anatomy.after_step, *anatomy.setup]
    for item in flatten(places):
        if isinstance(item, Line) and item.target is None:
            for loop, frame, before in _loops(anatomy, item.node, item.frame, [], 0):
                loader = unwrap_iterable(anatomy, loop.iter, frame)
                known = next((e for e in found if e.loop is loop), None)
                if known is not None:
                    known.callers.append(item)
                    continue
                evaluation = Evaluation(loop, frame, (loader[0], loader[1]), [item], before)
                evaluation.lines = _flat(loop.body, frame)
                found.append(evaluation)
    return found


def _loops(
    anatomy: Anatomy, node: ast.AST, frame: Frame, before: list[Line], depth: int
) -> Iterator[tuple[ast.For, Frame, list[Line]]]:
    if isinstance(node, ast.For) and any(_calls_model(anatomy, s, frame) for s in node.body):
        yield node, frame, before
        return
    if depth < _MAX_DEPTH and isinstance(node, ast.Call):
        found = anatomy.program.callee(node, frame)
        if found is not None and not anatomy.program.trains(node, frame):
            unit, function, instance = found
            if (
                instance is None
                or frame.instance is not None
                or instance in anatomy.program.instances.values()
            ):
                inner = anatomy.program._call(node, unit, function, instance, frame)
                yield from _in_block(anatomy, function.body, inner, [], depth + 1)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _in_block(anatomy, value, frame, before, depth)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, ast.AST):
                    yield from _loops(anatomy, each, frame, before, depth)
        elif isinstance(value, ast.AST) and name != "ctx":
            yield from _loops(anatomy, value, frame, before, depth)


def _in_block(
    anatomy: Anatomy, body: Sequence[ast.stmt], frame: Frame, before: list[Line], depth: int
) -> Iterator[tuple[ast.For, Frame, list[Line]]]:
    above = list(before)
    for statement in body:
        yield from _loops(anatomy, statement, frame, above, depth)
        above = [*above, Line(statement, frame)]


def _calls_model(anatomy: Anatomy, node: ast.AST, frame: Frame) -> bool:
    return any(
        isinstance(n, ast.Call) and anatomy.program.reference(n.func, frame) == anatomy.model
        for n in ast.walk(node)
    )


def _flat(body: Sequence[ast.stmt], frame: Frame) -> list[Line]:
    lines: list[Line] = []
    for statement in body:
        if isinstance(statement, ast.With):
            lines += _flat(statement.body, frame)
        else:
            lines.append(Line(statement, frame))
    return lines


def choose(
    anatomy: Anatomy, evaluations: Sequence[Evaluation], train_loader: tuple[ast.expr, Frame]
) -> Evaluation | None:
    """The first evaluation on other data than training's."""
    own = anatomy.program.reference(*train_loader)
    others = [e for e in evaluations if anatomy.program.reference(*e.loader) != own]
    return next(iter([*others, *evaluations]), None)


def read_metric(
    anatomy: Anatomy,
    evaluation: Evaluation,
    slicer: Slicer,
    renderer: Renderer,
    train_lines: Sequence[Line],
    train_target: ast.expr,
) -> None:
    """Finds what is counted as right, and which of its variables the training step has already."""
    _match(anatomy, evaluation, slicer, renderer, train_lines, train_target)
    for line in evaluation.lines:
        for node in ast.walk(line.node):
            sides = _compared(node)
            if sides is None:
                continue
            judged = [_depends_on_model(anatomy, evaluation, slicer, side) for side in sides]
            if judged.count(True) == 1:
                predicted = sides[judged.index(True)]
                label = sides[judged.index(False)]
            elif judged == [True, True]:  # target.view_as(pred)
                predicted, label = sides
                if _is_viewed(predicted):
                    predicted, label = label, predicted
            else:
                continue
            if isinstance(label, ast.Constant):
                continue
            evaluation.predictions, evaluation.labels = (predicted, line.frame), (label, line.frame)
            wanted = [evaluation.predictions, evaluation.labels]
            upto = evaluation.lines[: evaluation.lines.index(line)]
            needed = slicer.cut([*evaluation.before, *upto], wanted)
            evaluation.extra = [each for each in needed.lines if not _is_same(evaluation, slicer, each)]
            return


def _compared(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return node.left, node.comparators[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "eq":
        if len(node.args) == 2:
            return node.args[0], node.args[1]
        if len(node.args) == 1:
            return node.func.value, node.args[0]
    return None


def _is_viewed(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("view_as", "reshape_as", "expand_as")
    )


def _depends_on_model(anatomy: Anatomy, evaluation: Evaluation, slicer: Slicer, node: ast.expr) -> bool:
    cut = slicer.cut(evaluation.lines, [(node, evaluation.frame)])
    parts: list[ast.AST] = [node, *(line.node for line in cut.lines)]
    return any(_calls_model(anatomy, part, evaluation.frame) for part in parts)


def _match(
    anatomy: Anatomy,
    evaluation: Evaluation,
    slicer: Slicer,
    renderer: Renderer,
    train_lines: Sequence[Line],
    train_target: ast.expr,
) -> None:
    program = anatomy.program
    own_target = _batch_target(evaluation.loop.target, evaluation.loop.iter)
    same = evaluation.same
    batch_frame = anatomy.batch_loop.frame
    for mine, other in _parallel(own_target, train_target):
        a, b = program.reference(mine, evaluation.frame), program.reference(other, batch_frame)
        if isinstance(a, Var) and isinstance(b, Var):
            same[a] = b
    known: dict[str, list[ast.expr]] = {}
    frames: dict[str, Frame] = {}
    for line in train_lines:
        for target, value, frame in assignments(line):
            text = _canonical(renderer, value, frame, {})
            known.setdefault(text, []).append(target)
            frames[text] = frame
    for line in [*evaluation.before, *evaluation.lines]:
        for target, value, frame in assignments(line):
            text = _canonical(renderer, value, frame, same)
            for other in known.get(text, []):
                for mine, theirs in _parallel(target, other):
                    a, b = program.reference(mine, frame), program.reference(theirs, frames[text])
                    if isinstance(a, Var) and isinstance(b, Var):
                        same[a] = b


def _is_same(evaluation: Evaluation, slicer: Slicer, line: Line) -> bool:
    writes = slicer.of_line(line)[1]
    return bool(writes) and writes <= set(evaluation.same)


def assignments(line: Line) -> list[tuple[ast.expr, ast.expr, Frame]]:
    if line.target is not None and line.value is not None:
        return [(line.target[0], line.value[0], line.value[1])]
    if isinstance(line.node, ast.Assign) and len(line.node.targets) == 1:
        target, value = line.node.targets[0], line.node.value
        parts = [(t, v) for t, v in pair(target, value) if v is not None]
        if parts:
            return [(t, v, line.frame) for t, v in parts]
        return [(target, value, line.frame)]
    return []


def _parallel(one: ast.expr, other: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(one, (ast.Tuple, ast.List)) and isinstance(other, (ast.Tuple, ast.List)):
        if len(one.elts) == len(other.elts):
            for a, b in zip(one.elts, other.elts, strict=True):
                yield from _parallel(a, b)
    elif not isinstance(one, (ast.Tuple, ast.List)) and not isinstance(other, (ast.Tuple, ast.List)):
        yield one, other


def _canonical(renderer: Renderer, node: ast.expr, frame: Frame, same: dict[Var, Var]) -> str:
    """The text with one name for each variable, so that equal texts compute equal values."""

    class _Unique(Naming):
        def name(self, var: Var) -> str:
            var = same.get(var, var)
            return f"v{var.owner}_{var.name}"

    naming = _Unique(setting=lambda s: f"s_{s.key}")
    text = renderer.expression(node, frame, naming)
    try:
        return ast.unparse(ast.parse(f"({text})", mode="eval"))
    except SyntaxError:
        return text


def _batch_target(target: ast.expr, iterable: ast.expr) -> ast.expr:
    counted = any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "enumerate"
        for n in ast.walk(iterable)
    )
    if counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        return target.elts[1]
    return target


def batch_target(loop: Loop) -> tuple[ast.expr, ast.expr | None]:
    """What a batch is unpacked into, and the name that counts, if any."""
    assert isinstance(loop.node, ast.For)
    target = _batch_target(loop.node.target, loop.node.iter)
    counter = (
        loop.node.target.elts[0]
        if target is not loop.node.target and isinstance(loop.node.target, ast.Tuple)
        else None
    )
    return target, counter


__all__ = [
    "Evaluation",
    "assignments",
    "batch_target",
    "choose",
    "find_evaluations",
    "is_device",
    "read_metric",
]
