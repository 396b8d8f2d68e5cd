"""Indexes a syntax tree in one walk: nodes by type, parents, scopes and the names that they define."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

BindingKind = Literal[
    "import", "star", "assign", "unpack", "iterate", "with", "parameter", "function", "class", "other"
]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
N = TypeVar("N", bound=ast.AST)
M = TypeVar("M", bound=ast.AST)

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIELDS_WITHOUT_NODES = {
    "ctx",
    "op",
    "ops",
    "id",
    "attr",
    "name",
    "names",
    "module",
    "level",
    "type_comment",
    "kind",
    "simple",
}
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


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
        owner = self
        if name in self.declared_global:
            while owner.parent is not None:
                owner = owner.parent
        owner.bindings.setdefault(name, []).append(binding)

    def lookup(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """The scope that defines a name, and its bindings; names of a class are not visible in its methods."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None


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
        for outer in self.ancestors(node):
            if isinstance(outer, ast.ClassDef):
                return self.classes[outer]
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        if isinstance(node, ast.stmt):
            return node
        return next((a for a in self.ancestors(node) if isinstance(a, ast.stmt)), None)

    def loops_of(self, node: ast.AST) -> list[ast.AST]:
        """Loops around a node within its function, innermost first."""
        loops: list[ast.AST] = []
        for outer in self.ancestors(node):
            if isinstance(outer, _LOOPS):
                loops.append(outer)
            elif isinstance(outer, (*FUNCTIONS, ast.ClassDef)):
                break
        return loops

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

    def is_within(self, node: ast.AST, outer: ast.AST) -> bool:
        return node is outer or any(ancestor is outer for ancestor in self.ancestors(node))

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
            binder = _BINDERS.get(kind)
            if binder is not None:
                binder(self, node, scope)
                inner = scopes.get(node, scope)
            fields = _FIELDS.get(kind)
            if fields is None:
                fields = _fields_of(kind)
            # Fields are in reverse order, so that names are bound in the order of the text.
            for name in fields:
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
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in ("register_buffer", "register_parameter", "add_module")
                and len(call.args) > 1
                and isinstance(call.args[0], ast.Constant)
                and isinstance(call.args[0].value, str)
            ):
                info = self.class_of(call)
                if info is not None:
                    info.attributes.setdefault(call.args[0].value, []).append(call.args[1])


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


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


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    if kind is ast.Constant:
        found: tuple[str, ...] = ()
    else:
        skipped = _FIELDS_WITHOUT_NODES | ({"arg"} if kind in (ast.arg, ast.keyword) else set())
        found = tuple(reversed([f for f in kind._fields if f not in skipped]))
    _FIELDS[kind] = found
    return found


def _is_outside(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether `inner` is a part of a definition, such as a default, that is evaluated outside it."""
    return isinstance(outer, (*FUNCTIONS, ast.ClassDef)) and not isinstance(inner, ast.stmt)


def _bind_target(scope: Scope, target: ast.expr, value: ast.expr, node: ast.AST, kind: BindingKind) -> None:
    for leaf, own in pair(target, value):
        if isinstance(leaf, ast.Name):
            if kind == "assign" and own is None:
                scope.bind(leaf.id, Binding("unpack", node, value))
            else:
                scope.bind(leaf.id, Binding(kind, node, own if own is not None else value))


def _note_attributes(tree: Tree, target: ast.expr, value: ast.expr, scope: Scope) -> None:
    """Notes `self.x = ...` in a method."""
    if scope.own and scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef):
        for leaf, part in pair(target, value):
            if isinstance(leaf, ast.Attribute) and is_name(leaf.value, scope.own):
                info = tree.classes[scope.parent.node]
                info.attributes.setdefault(leaf.attr, []).append(part or value)


def _on_assign(tree: Tree, node: ast.Assign, scope: Scope) -> None:
    for target in node.targets:
        _bind_target(scope, target, node.value, node, "assign")
        _note_attributes(tree, target, node.value, scope)


def _on_annotated(tree: Tree, node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None:
        _bind_target(scope, node.target, node.value, node, "assign")
        _note_attributes(tree, node.target, node.value, scope)


def _on_named(tree: Tree, node: ast.NamedExpr, scope: Scope) -> None:
    _bind_target(scope, node.target, node.value, node, "assign")


def _on_for(tree: Tree, node: ast.For | ast.AsyncFor | ast.comprehension, scope: Scope) -> None:
    _bind_target(scope, node.target, node.iter, node, "iterate")


def _on_with_item(tree: Tree, node: ast.withitem, scope: Scope) -> None:
    if node.optional_vars is not None:
        _bind_target(scope, node.optional_vars, node.context_expr, node, "with")


def _on_augmented(tree: Tree, node: ast.AugAssign, scope: Scope) -> None:
    if isinstance(node.target, ast.Name):
        scope.bind(node.target.id, Binding("other", node, node.value))


def _on_import(tree: Tree, node: ast.Import, scope: Scope) -> None:
    for alias in node.names:
        bound = alias.asname or alias.name.partition(".")[0]
        dotted = alias.name if alias.asname else bound
        scope.bind(bound, Binding("import", node, dotted=dotted))


def _on_import_from(tree: Tree, node: ast.ImportFrom, scope: Scope) -> None:
    base = node.module or ""
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(Binding("star", node, dotted=base, level=node.level))
        else:
            dotted = f"{base}.{alias.name}" if base else alias.name
            scope.bind(alias.asname or alias.name, Binding("import", node, dotted=dotted, level=node.level))


def _on_function(tree: Tree, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
    scope.bind(node.name, Binding("function", node))
    if isinstance(scope.node, ast.ClassDef):
        tree.classes[scope.node].methods[node.name] = node
    _open_scope(tree, node, node.args, scope)


def _on_lambda(tree: Tree, node: ast.Lambda, scope: Scope) -> None:
    _open_scope(tree, node, node.args, scope)


def _open_scope(tree: Tree, node: ast.AST, args: ast.arguments, scope: Scope) -> None:
    inner = Scope(node, scope)
    tree.scopes[node] = inner
    defaults: list[ast.expr | None] = [*args.defaults]
    positional = [*args.posonlyargs, *args.args]
    inner.own = positional[0].arg if positional else ""
    padded = [None] * (len(positional) - len(defaults)) + defaults
    for argument, default in [
        *zip(positional, padded, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]:
        inner.bind(argument.arg, Binding("parameter", argument, default))
    for extra in (args.vararg, args.kwarg):
        if extra is not None:
            inner.bind(extra.arg, Binding("other", extra))


def _on_class(tree: Tree, node: ast.ClassDef, scope: Scope) -> None:
    scope.bind(node.name, Binding("class", node))
    tree.scopes[node] = Scope(node, scope)
    tree.classes[node] = ClassInfo(node, tree.scopes[node])


def _on_handler(tree: Tree, node: ast.ExceptHandler, scope: Scope) -> None:
    if node.name:
        scope.bind(node.name, Binding("other", node))


def _on_global(tree: Tree, node: ast.Global, scope: Scope) -> None:
    scope.declared_global.update(node.names)


def _on_capture(tree: Tree, node: ast.MatchAs | ast.MatchStar, scope: Scope) -> None:
    if node.name:
        scope.bind(node.name, Binding("other", node))


_BINDERS: dict[type[ast.AST], Any] = {
    ast.Assign: _on_assign,
    ast.AnnAssign: _on_annotated,
    ast.AugAssign: _on_augmented,
    ast.NamedExpr: _on_named,
    ast.For: _on_for,
    ast.AsyncFor: _on_for,
    ast.comprehension: _on_for,
    ast.withitem: _on_with_item,
    ast.Import: _on_import,
    ast.ImportFrom: _on_import_from,
    ast.FunctionDef: _on_function,
    ast.AsyncFunctionDef: _on_function,
    ast.Lambda: _on_lambda,
    ast.ClassDef: _on_class,
    ast.ExceptHandler: _on_handler,
    ast.Global: _on_global,
    ast.MatchAs: _on_capture,
    ast.MatchStar: _on_capture,
}  # fmt: skip
