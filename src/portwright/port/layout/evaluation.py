"""The script's evaluation: its loader, and the accuracy that it counts, in the words of the training step."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from portwright.port.layout.anatomy import PLACERS, Anatomy, kind_of, unwrap_iterable
from portwright.port.layout.program import Frame, Given, Item, Line, Loop, Var, flatten
from portwright.port.layout.slices import Slicer
from portwright.port.layout.text import Naming, Renderer
from portwright.port.layout.units import Function
from portwright.port.tree import FUNCTIONS, pair

_MAX_DEPTH = 6
# What calls of the model itself leave as it is, or what wraps it: the model under another name.
_SAME_OBJECT = (*PLACERS, "eval", "train", "float", "half", "double", "bfloat16", "requires_grad_")
_WRAPPED = ("module", "_orig_mod")
_ITERATES = ("enumerate", "iter", "list", "tuple", "reversed", "itertools.islice", "itertools.cycle")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Place = tuple[ast.expr, Frame]


@dataclass
class Evaluation:
    """A place beside the training step that calls the model, and what it is called on."""

    call: ast.Call
    frame: Frame
    outer: ast.Call  # the call in the script's own statement that leads here
    callers: list[Line]  # statements of the script that lead here
    loop: ast.For | ast.comprehension | None
    loader: Place | None  # None: what it is called on cannot be told
    part: bool = False  # whether it sees only some of the loader's batches
    before: list[Line] = field(default_factory=list)  # in the function, above the loop
    lines: list[Line] = field(default_factory=list)  # the loop's body
    # variables that are the training step's, under other names
    same: dict[Var, Var] = field(default_factory=dict)
    labels: Place | None = None
    predictions: Place | None = None
    extra: list[Line] = field(default_factory=list)  # statements that only the metric needs


@dataclass(frozen=True)
class _Way:
    """How a node is reached: the calls and loops around it, and the statements above it."""

    item: Line
    outer: ast.Call | None = None
    # with what stands above
    loops: tuple[tuple[ast.For | ast.comprehension, Frame, tuple[Line, ...]], ...] = ()
    before: tuple[Line, ...] = ()
    functions: tuple[ast.AST, ...] = ()


class Finder:
    """Follows what a script does beside its step, and notes each place that calls the model."""

    def __init__(self, anatomy: Anatomy, is_loader: Callable[[ast.expr, Frame], bool]) -> None:
        self.anatomy, self.program, self.is_loader = anatomy, anatomy.program, is_loader
        self.found: list[Evaluation] = []
        self._local: dict[Var, Place] = {}  # what functions call by a name of their own
        self._drawn: dict[Var, Place] = {}  # the loader that a variable was drawn from by next()
        assert anatomy.model is not None
        self._models = {anatomy.model}
        kind = kind_of(anatomy, anatomy.model)
        for var, made in anatomy.values.definitions.items():
            if var not in (anatomy.optimizer, anatomy.scheduler) and (
                (kind and kind_of(anatomy, var) == kind)
                or any(value is not None and self._wraps_model(value, frame) for value, frame, _ in made)
            ):
                self._models.add(var)

    def look(self, items: Sequence[Item]) -> None:
        for item in flatten(items):
            # `return test(model)` of a function that was followed
            if isinstance(item, Line) and item.value is not None:
                value, frame = item.value
                self._visit(value, frame, _Way(item))
            elif isinstance(item, Line):
                self._block([item.node], item.frame, _Way(item))

    def _block(self, body: Sequence[ast.stmt], frame: Frame, way: _Way) -> None:
        for statement in body:
            self._visit(statement, frame, way)
            self._note(statement, frame, way)
            way = replace(way, before=(*way.before, Line(statement, frame)))

    def _visit(self, node: ast.AST, frame: Frame, way: _Way) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return
        if isinstance(node, ast.For):
            self._visit(node.iter, frame, way)
            self._note(node, frame, way)
            self._block(node.body, frame, replace(way, loops=(*way.loops, (node, frame, way.before))))
            self._block(node.orelse, frame, way)
            return
        if isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                self._visit(generator.iter, frame, way)
                way = replace(way, loops=(*way.loops, (generator, frame, way.before)))
            node = ast.Tuple([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)])
        if isinstance(node, ast.Call):
            self._visit_call(node, frame, replace(way, outer=way.outer or node))
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._block(value, frame, way)
            else:
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self._visit(each, frame, way)

    def _visit_call(self, node: ast.Call, frame: Frame, way: _Way) -> None:
        func = node.func
        if self._is_model(func, frame):
            self._add(node, frame, way, self._data_of(node, frame, way))
            return
        if self.program.trains(node, frame):
            return
        is_method = isinstance(func, ast.Attribute) and self._is_model(func.value, frame)
        found = None if is_method else self._callee(node, frame)
        if found is not None:
            function, inner = found
            if function not in way.functions and len(way.functions) < _MAX_DEPTH:
                self._enter(inner)
                self._block(function.body, inner, replace(way, functions=(*way.functions, function)))
            return
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if way.item in self.anatomy.setup and not is_method and not self._is_class(func, frame):
            return  # a library that prepares model and loader for the training, say
        if is_method or any(self._is_model(a, frame) for a in arguments):
            # Code that cannot be followed: it evaluates where it is handed a loader, or batches of one.
            loader = self._data_of(node, frame, way) or next(
                ((place, False) for a in arguments if self.is_loader(*(place := self.resolve(a, frame)))),
                None,
            )
            if loader is not None:
                self._add(node, frame, way, loader)

    def _add(self, node: ast.Call, frame: Frame, way: _Way, data: tuple[Place, bool] | None) -> None:
        loader, part = data or (None, False)
        if loader is None and way.item not in self.anatomy.after_epoch:
            if way.item in self.anatomy.setup and not way.loops:
                return  # one call before training, to learn shapes, say
            if way.item not in self.anatomy.teardown and self._uses_batch(node, frame):
                return  # the training batch once more
        loop, at, above = next(
            (each for each in reversed(way.loops) if loader and self._over(*each[:2]) == data),
            (None, frame, way.before),
        )
        for known in self.found:
            if known.loop is loop and (loop or known.call is node) and self.same(known.loader, loader):
                known.callers.append(way.item)
                return
        assert way.outer is not None
        body = _flat(loop.body, at) if isinstance(loop, ast.For) else []
        self.found.append(Evaluation(node, at, way.outer, [way.item], loop, loader, part, list(above), body))

    # -- data --------------------------------------------------------------------------------------------------------

    def _data_of(self, call: ast.Call, frame: Frame, way: _Way) -> tuple[Place, bool] | None:
        """The loader whose batches a call sees, and whether it sees only some of them."""
        for loop, at, _ in reversed(way.loops):
            found = self._over(loop, at)
            if found is not None:
                return found
        drawn = self._drawn_in(call, frame)
        return (drawn, True) if drawn is not None else None

    def _over(self, loop: ast.For | ast.comprehension, frame: Frame) -> tuple[Place, bool] | None:
        part = isinstance(loop, ast.For) and any(isinstance(n, ast.Break) for n in ast.walk(loop))
        node, at = self.resolve(loop.iter, frame)
        if isinstance(node, ast.Call) and _name(node, at) == "zip":
            loaders = [place for a in node.args if self.is_loader(*(place := self.resolve(a, at)))]
            return (loaders[0], True) if len(loaders) == 1 else None
        part = part or any(
            isinstance(n, ast.Call) and _name(n, frame) == "itertools.islice" for n in ast.walk(loop.iter)
        )
        return ((node, at), part) if self.is_loader(node, at) else None

    def _drawn_in(self, node: ast.AST, frame: Frame) -> Place | None:
        """The loader that next() drew from, for what stands in a node."""
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and _name(each, frame) == "next" and each.args:
                place = self.resolve(each.args[0], frame)
                if self.is_loader(*place):
                    return place
        for occurrence in self.program.occurrences(node, frame):
            if isinstance(occurrence.ref, Var) and not occurrence.stores and occurrence.ref in self._drawn:
                return self._drawn[occurrence.ref]
        return None

    def _uses_batch(self, call: ast.Call, frame: Frame) -> bool:
        """Whether a call reads what the step made of the training batch."""
        loop = self.anatomy.batch_loop
        parts: list[tuple[ast.AST, Frame]] = [
            (i.node, i.frame) for i in self.anatomy.step if isinstance(i, Line)
        ]
        if isinstance(loop.node, ast.For):
            parts.append((loop.node.target, loop.frame))
        own = {o.ref for node, at in parts for o in self.program.occurrences(node, at) if o.stores}
        read = {o.ref for o in self.program.occurrences(call, frame)}
        return bool(own & read)

    def same(self, one: Place | None, other: Place | None) -> bool:
        """Whether two expressions stand for one loader, as far as their text tells."""
        if one is None or other is None:
            return one is other
        if self.program.reference(*one) == self.program.reference(*other):
            return True
        (a, in_a), (b, in_b) = one, other
        if isinstance(a, ast.Subscript) and isinstance(b, ast.Subscript):
            keys = [
                self.anatomy.values.try_evaluate(s.slice, f, default=ast.unparse(s.slice))
                for s, f in ((a, in_a), (b, in_b))
            ]
            return keys[0] == keys[1] and self.same((a.value, in_a), (b.value, in_b))
        return False

    # -- names -------------------------------------------------------------------------------------------------------

    def resolve(self, node: ast.expr, frame: Frame) -> Place:
        """What an expression stands for, through parameters, wrappers of iteration and names of functions."""
        for _ in range(12):
            if isinstance(node, ast.Call) and node.args:
                inner, at, _ = unwrap_iterable(self.anatomy, node, frame)
                if inner is node and _name(node, frame) in _ITERATES:
                    inner = node.args[0]
                if inner is not node:
                    node, frame = inner, at
                    continue
            ref = self.program.reference(node, frame)
            if isinstance(ref, Given) and ref.expr is not node:
                node, frame = ref.expr, ref.frame
            elif isinstance(ref, Var) and ref in self._local:
                node, frame = self._local[ref]
            elif (
                isinstance(ref, Var)
                and isinstance(made := self.anatomy.values.value_of(ref), tuple)
                and _iterates(*made)
            ):
                node, frame = made
            else:
                break
        return node, frame

    def _is_model(self, node: ast.expr, frame: Frame) -> bool:
        node, frame = self.resolve(node, frame)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _SAME_OBJECT
        ):
            return self._is_model(node.func.value, frame)
        if self.program.reference(node, frame) in self._models:
            return True
        return isinstance(node, ast.Attribute) and node.attr in _WRAPPED and self._is_model(node.value, frame)

    def _is_class(self, func: ast.expr, frame: Frame) -> bool:
        found = self.program.workspace.definition(frame.unit.names.resolve(func))
        return found is not None and isinstance(found[1], ast.ClassDef)

    def _wraps_model(self, node: ast.expr, frame: Frame) -> bool:
        """`copy.deepcopy(model)`, `model.module if ddp else model`: what is called like the model."""
        if isinstance(node, ast.IfExp):
            return self._wraps_model(node.body, frame) or self._wraps_model(node.orelse, frame)
        if isinstance(node, ast.Call) and self.program.callee(node, frame) is None:
            return any(self._is_model(a, frame) for a in node.args) or self._is_model(node, frame)
        return self._is_model(node, frame)

    def _callee(self, node: ast.Call, frame: Frame) -> tuple[Function, Frame] | None:
        """The project's function that a call runs, with what its names mean there."""
        found = self.program.callee(node, frame)
        if found is None:
            bound = (
                frame.unit.tree.scopes[frame.node].lookup(node.func.id)
                if isinstance(node.func, ast.Name)
                else None
            )
            inside = bound[1][0].node if bound and len(bound[1]) == 1 else None
            if not isinstance(inside, FUNCTIONS):
                return None
            found = (frame.unit, inside, None)
        unit, function, instance = found
        inner = self.program.enter(node, unit, function, instance, frame)
        if unit is frame.unit and unit.tree.scopes[function].parent is unit.tree.scopes[frame.node]:
            inner.outer = frame
        return function, inner

    def _enter(self, inner: Frame) -> None:
        """Parameters that the function binds anew begin with what they were given."""
        for name, (value, origin) in inner.arguments.items():
            ref = Var(inner.number, name)
            if self.program.lookup(inner, name) == ref:
                self._local[ref] = self.resolve(value, origin)

    def _note(self, node: ast.stmt, frame: Frame, way: _Way) -> None:
        """What a statement calls by a new name, and what it draws from a loader."""
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.For)) or value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        stored = {
            o.ref
            for t in targets
            for o in self.program.occurrences(t, frame)
            if o.stores and isinstance(o.ref, Var)
        }
        drawn = self._drawn_in(value, frame)
        if drawn is not None:
            self._drawn.update({ref: drawn for ref in stored if isinstance(ref, Var)})
        if (
            way.functions
            and isinstance(node, ast.Assign)
            and len(stored) == 1
            and isinstance(targets[0], ast.Name)
        ):
            ref = stored.pop()
            assert isinstance(ref, Var)
            if self._is_model(value, frame) or self._wraps_model(value, frame):
                self._models.add(ref)
                self._local.pop(ref, None)
                return
            place = self.resolve(value, frame)
            if self.program.reference(*place) != ref and not any(
                o.ref == ref for o in self.program.occurrences(*place)
            ):
                self._local[ref] = place


def _name(call: ast.Call, frame: Frame) -> str:
    return frame.unit.names.resolve(call.func) or (call.func.id if isinstance(call.func, ast.Name) else "")


def _iterates(value: ast.expr, frame: Frame) -> bool:
    return isinstance(value, ast.Call) and _name(value, frame) in _ITERATES


def _flat(body: Sequence[ast.stmt], frame: Frame) -> list[Line]:
    lines: list[Line] = []
    for statement in body:
        if isinstance(statement, ast.With):
            lines += _flat(statement.body, frame)
        else:
            lines.append(Line(statement, frame))
    return lines


def read_metric(
    anatomy: Anatomy,
    evaluation: Evaluation,
    slicer: Slicer,
    renderer: Renderer,
    train_lines: Sequence[Line],
    train_target: ast.expr,
) -> None:
    """Finds what is counted as right, and which of its variables the training step has already."""
    if not isinstance(evaluation.loop, ast.For):
        return
    _match(anatomy, evaluation, renderer, train_lines, train_target)
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
    calls = (n.func for part in parts for n in ast.walk(part) if isinstance(n, ast.Call))
    return any(anatomy.program.reference(func, evaluation.frame) == anatomy.model for func in calls)


def _match(
    anatomy: Anatomy,
    evaluation: Evaluation,
    renderer: Renderer,
    train_lines: Sequence[Line],
    train_target: ast.expr,
) -> None:
    program = anatomy.program
    assert isinstance(evaluation.loop, ast.For)
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


def first_number(anatomy: Anatomy) -> int:
    """Where enumerate() starts to count batches."""
    loop = anatomy.batch_loop
    for call in (n for n in ast.walk(loop.node.iter) if isinstance(n, ast.Call)):  # type: ignore[union-attr]
        if isinstance(call.func, ast.Name) and call.func.id == "enumerate":
            start = next((k.value for k in call.keywords if k.arg == "start"), None)
            given = call.args[1] if len(call.args) > 1 else start
            return int(anatomy.values.try_evaluate(given, loop.frame, default=0) or 0)
    return 0
