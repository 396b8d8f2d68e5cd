"""Indexes a syntax tree in one walk: nodes by type, parents, scopes and the names that they define."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Literal, TypeGuard, TypeVar, overload

BindingKind = Literal[
    "import", "star", "assign", "unpack", "iterate", "with", "parameter", "function", "class", "other"
]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
N = TypeVar("N", bound=ast.AST)
M = TypeVar("M", bound=ast.AST)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIELDS_WITHOUT_NODES = frozenset(
    ["ctx", "op", "ops", "id", "attr", "name", "names", "module", "level", "type_comment", "kind", "simple"]
)
# The fields of each kind of node that hold nodes, the last first.
_FIELDS: dict[type[ast.AST], list[str]] = {
    kind: [
        field
        for field in reversed(kind._fields)
        if field not in _FIELDS_WITHOUT_NODES
        and (kind, field) not in ((ast.arg, "arg"), (ast.keyword, "arg"))
    ]
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
} | {ast.Constant: []}


@dataclass(frozen=True)
class Binding:
    """One place where a name is defined or assigned."""

    kind: BindingKind
    node: ast.AST
    value: ast.expr | None = None
    dotted: str = ""  # of an import: what was imported
    level: int = 0  # of an import: leading dots


@dataclass
class Scope:
    """A module, class or function, and the bindings of its names."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[Binding] = field(default_factory=list)
    declared_global: set[str] = field(default_factory=set)
    own: str = ""  # of a method: the name of its first parameter, mostly self

    def bind(self, name: str, binding: Binding) -> None:
        *_, module = self.around()
        owner = module if name in self.declared_global else self
        owner.bindings.setdefault(name, []).append(binding)

    def lookup(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """The scope that defines a name, and its bindings; names of a class are not visible in its methods."""
        for scope in self.around():
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.bindings[name]
        return None

    def around(self) -> Iterator[Scope]:
        """This scope and those around it, the module's last."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


@dataclass
class ClassInfo:
    """A class, its methods, and the values assigned to attributes of its instances."""

    node: ast.ClassDef
    scope: Scope
    methods: dict[str, FunctionNode] = field(default_factory=dict)
    attributes: dict[str, list[ast.expr]] = field(default_factory=dict)


class Tree:
    """An indexed syntax tree."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.nodes: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope = Scope(module, None)
        self.scopes: dict[ast.AST, Scope] = {module: self.scope}
        self.classes: dict[ast.ClassDef, ClassInfo] = {}
        self._scope_of_name: dict[ast.AST, Scope] = {}
        self._walk()
        self._note_registered()

    @overload
    def all(self, kind: type[N], /) -> list[N]: ...

    @overload
    def all(self, kind: type[N], other: type[M], /) -> list[N | M]: ...

    @overload
    def all(self, *kinds: type[N]) -> list[N]: ...

    def all(self, *kinds: type[N]) -> list[N]:
        """Every node of these types, in no order."""
        return [node for kind in kinds for node in self.nodes.get(kind, ())]  # type: ignore[misc]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        parents = self.parents
        while node in parents:
            node = parents[node]
            yield node

    def function_of(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around a node; defaults and decorators of a function count as outside it."""
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, FUNCTIONS) and isinstance(inner, ast.stmt):
                return outer
            if isinstance(outer, ast.Lambda) and inner is outer.body:
                return outer
            inner = outer
        return None

    def class_of(self, node: ast.AST) -> ClassInfo | None:
        """The innermost class around a node."""
        return next((self.classes[a] for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        return next((a for a in chain([node], self.ancestors(node)) if isinstance(a, ast.stmt)), None)

    def loops_of(self, node: ast.AST) -> list[ast.AST]:
        """Loops around a node within its function, innermost first."""
        own = takewhile(lambda a: not isinstance(a, (*FUNCTIONS, ast.ClassDef)), self.ancestors(node))
        return [outer for outer in own if isinstance(outer, (ast.For, ast.AsyncFor, ast.While))]

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which a node's names are looked up."""
        known = self._scope_of_name.get(node)
        if known is not None:
            return known
        inner = node
        for outer in self.ancestors(node):
            scope = self.scopes.get(outer)
            if scope is not None and not _is_outside(outer, inner):
                return scope
            inner = outer
        return self.scope

    def bindings(self, node: ast.AST | None) -> list[Binding]:
        """Where the name that a node is gets its values; empty for an unknown name and for anything else."""
        found = self.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
        return found[1] if found else []

    def assigned_values(self, node: ast.AST | None) -> list[ast.expr]:
        """The values of a name that gets them by assignments alone; else empty."""
        values = [b.value for b in self.bindings(node) if b.kind == "assign" and b.value is not None]
        return values if len(values) == len(self.bindings(node)) else []

    def attribute_values(self, node: ast.Attribute) -> list[ast.expr]:
        """What instances of the class around a node `self.x` get as their attribute x."""
        info = self.class_of(node)
        return info.attributes.get(node.attr, []) if info else []

    def only_definition(self, node: ast.AST | None) -> ast.AST | None:
        """What defines a name that is defined once, such as a function."""
        found = self.bindings(node)
        return found[0].node if len(found) == 1 else None

    def reads(self, name: str, scope: Scope) -> Iterator[ast.Name]:
        """Every place that reads a name of a scope."""
        for node in self.all(ast.Name):
            if node.id == name and isinstance(node.ctx, ast.Load):
                found = self.scope_of(node).lookup(name)
                if found and found[0] is scope:
                    yield node

    def parent_call(self, node: ast.AST | None) -> ast.Call | None:
        """The call whose function a node is."""
        outer = self.parents.get(node) if node is not None else None
        return outer if isinstance(outer, ast.Call) and outer.func is node else None

    def stands_alone(self, node: ast.AST) -> bool:
        """Whether an expression is a statement of its own, so that nothing uses its value."""
        return isinstance(self.parents.get(node), ast.Expr)

    def is_within(self, node: ast.AST, outer: ast.AST) -> bool:
        return any(inner is outer for inner in chain([node], self.ancestors(node)))

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement is in."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def _walk(self) -> None:
        nodes, parents, scopes, of_name = self.nodes, self.parents, self.scopes, self._scope_of_name
        stack: list[tuple[ast.AST, Scope]] = [(self.module, self.scope)]
        pop, push = stack.pop, stack.append
        while stack:
            node, scope = pop()
            kind = node.__class__
            nodes[kind].append(node)
            if kind is ast.Name:
                of_name[node] = scope
                continue
            inner = scope
            if kind in _BINDERS:
                _bind(self, node, scope)
                inner = scopes.get(node, scope)
            # Fields are in reverse order, so that names are bound in the order of the text.
            for name in _FIELDS[kind]:
                child = getattr(node, name, None)
                if child is None:
                    continue
                # Defaults, decorators and bases are evaluated around a definition, not in it.
                own = inner if name == "body" else scope
                if child.__class__ is list:
                    for item in reversed(child):
                        if isinstance(item, ast.AST):
                            parents[item] = node
                            push((item, own))
                elif isinstance(child, ast.AST):
                    parents[child] = node
                    push((child, own))

    def _note_registered(self) -> None:
        """Notes attributes that a module registers by name, such as buffers."""
        for call in self.all(ast.Call):
            if is_method_call(call, "register_buffer", "register_parameter", "add_module"):
                info = self.class_of(call)
                match call.args:
                    case [ast.Constant(str(name)), value, *_] if info is not None:
                        info.attributes.setdefault(name, []).append(value)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def imported_tops(node: ast.AST) -> list[str]:
    """The top names of the packages that an import names; "" for one relative to its file, and none for another node."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").partition(".")[0] if not node.level else ""]
    return [alias.name.partition(".")[0] for alias in node.names] if isinstance(node, ast.Import) else []


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def last_name(node: ast.AST | None) -> str:
    """The name `c` of `c` and of `a.b.c`; empty for anything else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


class MethodCall(ast.Call):
    """A call of an attribute, as type checkers see it; no node is an instance."""

    func: ast.Attribute


def is_method_call(node: ast.AST | None, *names: str) -> TypeGuard[MethodCall]:
    """Whether a node calls a method, of one of these names if any are given."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_call and (not names or node.func.attr in names)  # type: ignore[union-attr]


def asks_own_name(test: ast.expr) -> bool:
    """Whether a condition mentions `__name__`, as the guard of a script does."""
    return any(is_name(node, "__name__") for node in ast.walk(test))


def dotted_chain(node: ast.AST) -> tuple[ast.Name, list[str]] | None:
    """Splits `a.b.c` into the name `a` and ["b", "c"]; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node, parts[::-1]) if isinstance(node, ast.Name) else None


def pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The leaves of an assignment's target, each with its value, or None if the value cannot be split."""
    if isinstance(target, (ast.Tuple, ast.List)):
        matched = (
            isinstance(value, (ast.Tuple, ast.List))
            and len(value.elts) == len(target.elts)
            and not any(isinstance(e, ast.Starred) for e in (*value.elts, *target.elts))
        )
        for i, element in enumerate(target.elts):
            inner = element.value if isinstance(element, ast.Starred) else element
            if matched:
                yield from pair(inner, value.elts[i])  # type: ignore[attr-defined]
            else:
                yield from ((leaf, None) for leaf, _ in pair(inner, value))
    else:
        yield target, value


def _is_outside(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether `inner` is a part of a definition, such as a default, that is evaluated outside it."""
    return isinstance(outer, (*FUNCTIONS, ast.ClassDef)) and not isinstance(inner, ast.stmt)


def _bind_target(scope: Scope, target: ast.expr, value: ast.expr, node: ast.AST, kind: BindingKind) -> None:
    for leaf, own in pair(target, value):
        if isinstance(leaf, ast.Name):
            found: BindingKind = "unpack" if kind == "assign" and own is None else kind
            scope.bind(leaf.id, Binding(found, node, own or value))


def _note_attributes(tree: Tree, target: ast.expr, value: ast.expr, scope: Scope) -> None:
    """Notes `self.x = ...` in a method."""
    if scope.own and scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef):
        for leaf, part in pair(target, value):
            if isinstance(leaf, ast.Attribute) and is_name(leaf.value, scope.own):
                info = tree.classes[scope.parent.node]
                info.attributes.setdefault(leaf.attr, []).append(part or value)


# Nodes that define a name or open a scope.
_BINDERS = frozenset({
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem, ast.Import,
    ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ExceptHandler, ast.Global, ast.MatchAs,
    ast.MatchStar,
})  # fmt: skip


def _bind(tree: Tree, node: ast.AST, scope: Scope) -> None:
    """Notes what a node defines in its scope, and the scope that it opens."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _bind_target(scope, target, value, node, "assign")
                _note_attributes(tree, target, value, scope)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            _bind_target(scope, target, value, node, "assign")
            _note_attributes(tree, target, value, scope)
        case ast.NamedExpr(target=target, value=value):
            _bind_target(scope, target, value, node, "assign")
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            _bind_target(scope, node.target, node.iter, node, "iterate")
        case ast.withitem(optional_vars=ast.expr() as target):
            _bind_target(scope, target, node.context_expr, node, "with")
        case ast.AugAssign(target=ast.Name(name)):
            scope.bind(name, Binding("other", node, node.value))
        case ast.Import(names=names):
            for alias in names:
                bound = alias.asname or alias.name.partition(".")[0]
                scope.bind(bound, Binding("import", node, dotted=alias.name if alias.asname else bound))
        case ast.ImportFrom(names=names):
            base = node.module or ""
            for alias in names:
                if alias.name == "*":
                    scope.stars.append(Binding("star", node, dotted=base, level=node.level))
                else:
                    dotted = f"{base}.{alias.name}" if base else alias.name
                    found = Binding("import", node, dotted=dotted, level=node.level)
                    scope.bind(alias.asname or alias.name, found)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            scope.bind(node.name, Binding("function", node))
            if isinstance(scope.node, ast.ClassDef):
                tree.classes[scope.node].methods[node.name] = node
            _open_scope(tree, node, node.args, scope)
        case ast.Lambda():
            _open_scope(tree, node, node.args, scope)
        case ast.ClassDef():
            scope.bind(node.name, Binding("class", node))
            tree.scopes[node] = Scope(node, scope)
            tree.classes[node] = ClassInfo(node, tree.scopes[node])
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            scope.bind(name, Binding("other", node))
        case ast.Global(names=declared):
            scope.declared_global.update(declared)


def _open_scope(tree: Tree, node: ast.AST, args: ast.arguments, scope: Scope) -> None:
    inner = Scope(node, scope)
    tree.scopes[node] = inner
    positional = [*args.posonlyargs, *args.args]
    inner.own = positional[0].arg if positional else ""
    padded = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
    for argument, default in [
        *zip(positional, padded, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]:
        inner.bind(argument.arg, Binding("parameter", argument, default))
    for extra in (args.vararg, args.kwarg):
        if extra is not None:
            inner.bind(extra.arg, Binding("other", extra))
