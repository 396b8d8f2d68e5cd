"""A script read along its way to the training step: calls that lead there are followed, so that what main(), train() and a
Trainer's methods do stands in one line of statements, each with the frame that its names mean something in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from portwright.port.layout.units import Function, RefusalError, Unit, Workspace
from portwright.port.tree import FUNCTIONS, ClassInfo, asks_own_name

_MAX_DEPTH = 12
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_numbers = count()


@dataclass(frozen=True)
class Var:
    """A variable: a name in a frame, or an attribute of an object (`self.x` in all methods)."""

    owner: int
    name: str


@dataclass(frozen=True)
class Setting:
    """`args.x` of parsed arguments."""

    space: Var
    key: str


@dataclass(frozen=True)
class Given:
    """A parameter that was given an expression."""

    expr: ast.expr
    frame: Frame


@dataclass(frozen=True)
class Global:
    """What a file defines or imports at its top level, or a builtin."""

    unit: Unit
    name: str


Ref = Var | Setting | Given | Global


@dataclass(eq=False)
class Instance:
    """An object of a class of the project whose methods train."""

    unit: Unit
    info: ClassInfo
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(eq=False)
class Frame:
    """A module, or a function as it was called."""

    unit: Unit
    node: ast.AST
    arguments: dict[str, tuple[ast.expr, Frame]] = field(default_factory=dict)
    instance: Instance | None = None
    depth: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    outer: Frame | None = None  # of a function that stands in another: where its other names come from

    @property
    def own(self) -> str:
        """What a method calls its object."""
        return self.unit.tree.scopes[self.node].own if self.instance is not None else ""


@dataclass(frozen=True)
class Occurrence:
    """A place in the text that stands for a variable, a setting or a definition."""

    node: ast.expr
    ref: Ref
    stores: bool


@dataclass(eq=False)
class Line:
    """A statement; or, where a call was followed, what it returned (or took) and what that is bound to."""

    node: ast.stmt
    frame: Frame
    target: tuple[ast.expr, Frame] | None = None
    value: tuple[ast.expr, Frame] | None = None


@dataclass(eq=False)
class Header:
    """The head of a with, if or try whose block leads to the step."""

    node: ast.stmt
    frame: Frame


@dataclass(eq=False)
class Loop:
    node: ast.For | ast.AsyncFor | ast.While
    frame: Frame
    body: list[Item]


Item = Line | Header | Loop


class Program:
    """The statements of a script from its first to its last, loops that train opened up."""

    def __init__(self, workspace: Workspace, entry: Unit) -> None:
        self.workspace, self.entry = workspace, entry
        self.main = Frame(entry, entry.tree.module)
        self.instances: dict[Var, Instance] = {}
        self.namespaces: set[Var] = set()
        self.tables: set[Var] = set()  # settings in a dict: config["lr"]
        self.aliases: dict[Var, Var] = {}  # `self.model = model`: two names of one object
        # the texts for training and for evaluation
        self.phases: tuple[ast.Constant, ast.Constant] | None = None
        self.entered: set[ast.stmt] = set()  # statements whose call was followed
        self._modules: dict[Unit, Frame] = {entry: self.main}
        self._trains: dict[ast.AST, bool] = {}
        self._occurrences: dict[tuple[ast.AST, int], list[Occurrence]] = {}
        self.items = self.expand(self.main.node.body, self.main)  # type: ignore[attr-defined]

    # -- opening up --------------------------------------------------------------------------------------------

    def expand(self, statements: Sequence[ast.stmt], frame: Frame) -> list[Item]:
        items: list[Item] = []
        for statement in statements:
            items += self._expand_one(statement, frame)
        return items

    def _expand_one(self, node: ast.stmt, frame: Frame) -> list[Item]:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)) and frame is self.main:
            return []  # definitions are placed by who needs them
        if isinstance(node, ast.If) and asks_own_name(node.test):
            return self.expand(node.body, frame)
        made = self._made_instance(node, frame)
        if made is not None:
            return made
        if not self.trains(node, frame) and not self._builds(node, frame):
            return [Line(node, frame)]
        ended = self._ends_with(node, frame)
        if ended is not None:
            return self._inline(ended, node, frame, None)
        match node:
            case ast.For() if _phases(node) is not None:
                # `for phase in ["train", "val"]`: run() has modes for them, and training is the first.
                phases = _phases(node)
                assert phases is not None
                self.phases = phases
                chosen = Line(node, frame, (node.target, frame), (phases[0], frame))
                return [chosen, *self.expand(node.body, frame)]
            case ast.For() | ast.AsyncFor() | ast.While():
                return [Loop(node, frame, self.expand(node.body, frame))]
            case ast.With() | ast.AsyncWith() | ast.Try() | ast.If():
                branches = [node.body, *(getattr(node, n, []) for n in ("orelse", "finalbody"))]
                busy = [b for b in branches if any(self.trains(s, frame) for s in b)]
                if len(busy) > 1 or (
                    isinstance(node, ast.If) and len(busy) == 1 and busy[0] is not node.body
                ):
                    if len(busy) == 1:
                        return [Header(node, frame), *self.expand(busy[0], frame)]
                    raise RefusalError(
                        "training is done in two branches here",
                        "Keep one of them, or use --style in-place.",
                        frame.unit,
                        node,
                    )
                items: list[Item] = [Header(node, frame), *self.expand(node.body, frame)]
                if isinstance(node, ast.Try):
                    items += self.expand(node.finalbody, frame)
                return items
            case ast.Expr(value=ast.Call() as call) | ast.Return(value=ast.Call() as call):
                return self._inline(call, node, frame, None)
            case ast.Assign(targets=[target], value=ast.Call() as call):
                return self._inline(call, node, frame, target)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
            inner = next(
                (c for c in ast.walk(node) if isinstance(c, ast.Call) and self.trains(c, frame)), None
            )
            if inner is not None and self.callee(inner, frame) is not None:
                return [*self._inline(inner, node, frame, None), Line(node, frame)]
            return [Line(node, frame)]  # loss.backward() itself, in an odd place
        return [Line(node, frame)]

    def _ends_with(self, node: ast.stmt, frame: Frame) -> ast.Call | None:
        """The call in `sys.exit(main())` and `raise SystemExit(main())`, whose result is the script's status."""
        match node:
            case ast.Expr(value=ast.Call(func=func, args=[ast.Call() as call], keywords=[])):
                name = frame.unit.names.resolve(func) or (func.id if isinstance(func, ast.Name) else "")
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[ast.Call() as call], keywords=[])):
                pass
            case _:
                return None
        ends = name in ("sys.exit", "exit", "quit", "SystemExit", "os._exit", "asyncio.run")
        return call if ends and self.callee(call, frame) is not None else None

    def _inline(self, call: ast.Call, node: ast.stmt, frame: Frame, target: ast.expr | None) -> list[Item]:
        if is_backward(call):
            return [Line(node, frame)]
        found = self.callee(call, frame)
        if found is None:
            return [Line(node, frame)]
        unit, function, instance = found
        self.entered.add(node)
        items: list[Item] = []
        if (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Call)
            and instance is None
        ):
            cls = self._class_of(call.func.value, frame)
            if cls is not None:  # Trainer(...).train()
                instance = Instance(*cls)
                items += self._construct(call.func.value, instance, frame)
        inner = self._call(call, unit, function, instance, frame)
        scope = unit.tree.scopes[function]
        for name, (value, origin) in list(inner.arguments.items()):
            # main(parse_args()): made once, before the function
            if isinstance(value, ast.Call) and origin is frame:
                del inner.arguments[name]
            if name not in inner.arguments or any(
                b.kind != "parameter" for b in scope.bindings.get(name, ())
            ):
                start = Line(node, inner, (ast.Name(name, ast.Store()), inner), (value, origin))
                items.append(start)
        body = function.body
        if body and _is_text(body[0]):
            body = body[1:]
        last = body[-1] if body else None
        if isinstance(last, ast.Return):
            items += self.expand(body[:-1], inner)
            if last.value is not None and target is not None:
                if isinstance(last.value, ast.Call) and self._leads(last, inner):
                    items += self._inline(last.value, last, inner, None)
                items.append(Line(node, frame, (target, frame), (last.value, inner)))
            elif last.value is not None:
                items += self._expand_one(last, inner)
            return items
        return items + self.expand(body, inner)

    def enter(
        self, call: ast.Call, unit: Unit, function: Function, instance: Instance | None, frame: Frame
    ) -> Frame:
        """What names mean in a function that is called; arguments with * or ** are not known there."""
        try:
            return self._call(call, unit, function, instance, frame)
        except RefusalError:
            return Frame(unit, function, instance=instance, depth=frame.depth + 1)

    def _call(
        self, call: ast.Call, unit: Unit, function: Function, instance: Instance | None, frame: Frame
    ) -> Frame:
        if frame.depth >= _MAX_DEPTH:
            raise RefusalError("calls lead here too deeply", "Use --style in-place.", frame.unit, call)
        inner = Frame(unit, function, instance=instance, depth=frame.depth + 1)
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if instance is not None:
            names = names[1:]
        home = self.module_frame(unit)
        defaults: list[ast.expr] = list(arguments.defaults)
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            inner.arguments[name] = (default, home)
        for arg, own in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if own is not None:
                inner.arguments[arg.arg] = (own, home)
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            raise RefusalError(
                "this call hands on arguments with * or **",
                "Name them, or use --style in-place.",
                frame.unit,
                call,
            )
        for name, value in zip(names, call.args, strict=False):
            inner.arguments[name] = (value, frame)
        for keyword in call.keywords:
            if keyword.arg is not None:
                inner.arguments[keyword.arg] = (keyword.value, frame)
        return inner

    def _made_instance(self, node: ast.stmt, frame: Frame) -> list[Item] | None:
        """`trainer = Trainer(...)`, where Trainer's methods train: its __init__ is followed."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)):
            return None
        cls = self._class_of(node.value, frame)
        if cls is None or not any(
            self._function_trains(cls[0], m, cls[1])
            for m in cls[1].methods.values()
            if isinstance(m, FUNCTIONS)
        ):
            return None
        if cls[0].names.is_module_node(cls[1].node):
            raise RefusalError(
                f"the module {cls[1].node.name} trains itself",
                "Move backward() and the optimizer out of it, or use --style in-place.",
                cls[0],
                cls[1].node,
            )
        variable = next((o.ref for o in self.occurrences(node.targets[0], frame)), None)
        instance = Instance(*cls)
        if isinstance(variable, Var):
            self.instances[variable] = instance
        return self._construct(node.value, instance, frame)

    def _construct(self, call: ast.Call, instance: Instance, frame: Frame) -> list[Item]:
        found = self.workspace.method(instance.unit, instance.info, "__init__")
        if found is None:
            return []
        inner = self._call(call, found[0], found[1], instance, frame)
        return self.expand([s for s in found[1].body if not _is_text(s) and not _is_super_init(s)], inner)

    # -- who trains -----------------------------------------------------------------------------------------------

    def trains(self, node: ast.AST, frame: Frame) -> bool:
        """Whether running a node leads to a backward()."""
        return any(self._leads(call, frame) for call in _calls(node))

    def _leads(self, node: ast.AST, frame: Frame) -> bool:
        call = node.value if isinstance(node, ast.Return) else node
        if not isinstance(call, ast.Call):
            return False
        if is_backward(call):
            return True
        found = self.callee(call, frame)
        return found is not None and self._function_trains(
            found[0], found[1], found[2].info if found[2] else None
        )

    def _function_trains(self, unit: Unit, function: ast.AST, info: ClassInfo | None) -> bool:
        if function not in self._trains:
            self._trains[function] = False  # a function that calls itself
            frame = Frame(unit, function, instance=Instance(unit, info) if info is not None else None)
            self._trains[function] = any(self.trains(s, frame) for s in getattr(function, "body", []))
        return self._trains[function]

    def _builds(self, node: ast.stmt, frame: Frame) -> bool:
        """Whether a statement calls a function of the project that makes the optimizer: its settings are wanted."""
        if not isinstance(node, (ast.Assign, ast.Expr)) or not isinstance(node.value, ast.Call):
            return False
        found = self.callee(node.value, frame)
        if found is None or frame.depth > 5:
            return False
        unit, function, instance = found
        simple = not any(isinstance(s, ast.Return) for s in ast.walk(function) if s is not function.body[-1])
        if instance is not None and instance is frame.instance:
            return simple  # what a method of the Trainer does to its attributes
        if isinstance(node, ast.Expr):
            return False
        return simple and any(
            (unit.names.resolve(c.func) or "").startswith("torch.optim.")
            for c in ast.walk(function)
            if isinstance(c, ast.Call)
        )

    def callee(self, call: ast.Call, frame: Frame) -> tuple[Unit, Function, Instance | None] | None:
        """The project's function or method that a call runs, as far as that can be told."""
        func = call.func
        found = self.workspace.definition(frame.unit.names.resolve(func))
        if found is not None:
            return (found[0], found[1], None) if isinstance(found[1], FUNCTIONS) else None
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Name):
            if frame.instance is not None and func.value.id == frame.own:
                method = self.workspace.method(frame.instance.unit, frame.instance.info, func.attr)
                return (*method, frame.instance) if method else None
            ref = self.lookup(frame, func.value.id)
            known = self.instances.get(ref) if isinstance(ref, Var) else None
            if known is not None:
                method = self.workspace.method(known.unit, known.info, func.attr)
                return (*method, known) if method else None
        cls = self._class_of(func.value, frame)
        if cls is not None:
            method = self.workspace.method(*cls, func.attr)
            if method is not None:
                return (*method, Instance(*cls) if not isinstance(func.value, ast.Call) else None)
        return None

    def _class_of(self, node: ast.expr, frame: Frame) -> tuple[Unit, ClassInfo] | None:
        """The project's class that a value is an object of."""
        if isinstance(node, ast.Call):
            found = self.workspace.definition(frame.unit.names.resolve(node.func))
            if found is not None and isinstance(found[1], ast.ClassDef):
                return found[0], found[0].tree.classes[found[1]]
        if isinstance(node, ast.Name):
            bound = frame.unit.tree.scopes[frame.node].lookup(node.id)
            for binding in bound[1] if bound else ():
                if binding.kind == "assign" and isinstance(binding.value, ast.Call):
                    return self._class_of(binding.value, frame)
        return None

    # -- names -------------------------------------------------------------------------------------------------

    def module_frame(self, unit: Unit) -> Frame:
        return self._modules.setdefault(unit, Frame(unit, unit.tree.module))

    def lookup(self, frame: Frame, name: str) -> Ref:
        """What a name means in a frame; a parameter is what it was given."""
        return self._first(self._lookup(frame, name))

    def _first(self, ref: Ref) -> Ref:
        while isinstance(ref, Var) and ref in self.aliases:
            ref = self.aliases[ref]
        return ref

    def _lookup(self, frame: Frame, name: str) -> Ref:
        bindings = frame.unit.tree.scopes[frame.node].bindings.get(name)
        if isinstance(frame.node, ast.Module):
            kinds = {b.kind for b in bindings or ()}
            if frame is not self.main or not kinds or kinds & {"import", "function", "class", "star"}:
                return Global(frame.unit, name)
            return Var(frame.number, name)
        if bindings is None:
            return self.lookup(frame.outer or self.module_frame(frame.unit), name)
        if {b.kind for b in bindings} == {"import"}:
            return Var(frame.number, name)
        if all(b.kind == "parameter" for b in bindings) and name in frame.arguments:
            expr, origin = frame.arguments[name]
            return self.reference(expr, origin)
        return Var(frame.number, name)

    def reference(self, expr: ast.expr, frame: Frame) -> Ref:
        """What an expression stands for: a variable where it only names one."""
        if isinstance(expr, ast.Name):
            return self.lookup(frame, expr.id)
        if (
            isinstance(expr, ast.Attribute)
            and isinstance(expr.value, ast.Name)
            and frame.instance is not None
            and expr.value.id == frame.own
        ):
            return self._first(Var(frame.instance.number, expr.attr))
        if isinstance(expr, ast.Attribute) and isinstance(expr.value, (ast.Name, ast.Attribute)):
            base = self.reference(expr.value, frame)
            if isinstance(base, Var) and base in self.namespaces:
                return Setting(base, expr.attr)
        if isinstance(expr, ast.Subscript) and isinstance(expr.value, (ast.Name, ast.Attribute)):
            table = self.reference(expr.value, frame)
            if isinstance(table, Var) and table in self.tables and isinstance(expr.slice, ast.Constant):
                return Setting(table, str(expr.slice.value))
        return Given(expr, frame)

    def occurrences(self, node: ast.AST, frame: Frame) -> list[Occurrence]:
        """Every place in a node that stands for something outside of it, in the order of the text."""
        key = (node, frame.number)
        if key not in self._occurrences:
            self._occurrences[key] = list(self._walk(node, frame, frozenset()))
        return self._occurrences[key]

    def forget(self) -> None:
        """Looks at all names anew, once it is known which of them are parsed arguments."""
        self._occurrences.clear()

    def _walk(self, node: ast.AST, frame: Frame, hidden: frozenset[str]) -> Iterator[Occurrence]:
        if isinstance(node, ast.Name):
            if node.id not in hidden:
                yield Occurrence(node, self.lookup(frame, node.id), not isinstance(node.ctx, ast.Load))
            return
        if isinstance(node, (ast.Attribute, ast.Subscript)) and _root_name(node) not in (None, *hidden):
            ref = self.reference(node, frame)
            if isinstance(ref, (Var, Setting)):
                yield Occurrence(node, ref, not isinstance(node.ctx, ast.Load))
                return
        inner = hidden
        if isinstance(node, _COMPREHENSIONS):
            bound = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            inner = hidden | bound
        elif isinstance(node, ast.Lambda):
            inner = hidden | {a.arg for a in _all_arguments(node.args)}
        elif isinstance(node, FUNCTIONS):
            scope = frame.unit.tree.scopes[node]
            inner = hidden | set(scope.bindings)
        for child in ast.iter_child_nodes(node):
            yield from self._walk(child, frame, inner)


def is_backward(call: ast.Call) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr in ("backward", "manual_backward")
        and not (isinstance(func.value, ast.Name) and func.value.id in ("ctx", "super"))
    )


def flatten(items: Sequence[Item]) -> Iterator[Item]:
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from flatten(item.body)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.Call):
            yield each
        waiting += [
            c for c in ast.iter_child_nodes(each) if not isinstance(c, (*FUNCTIONS, ast.ClassDef, ast.Lambda))
        ]


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]


def _phases(node: ast.For) -> tuple[ast.Constant, ast.Constant] | None:
    if not isinstance(node.iter, (ast.List, ast.Tuple)) or not isinstance(node.target, ast.Name):
        return None
    texts = [e for e in node.iter.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    training = [e for e in texts if "train" in str(e.value)]
    others = [e for e in texts if e not in training]
    return (
        (training[0], others[0])
        if len(texts) == len(node.iter.elts) and len(training) == 1 and others
        else None
    )


def _root_name(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_super_init(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "__init__"
    )
