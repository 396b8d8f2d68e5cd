"""Where the instances of a class go within its file, and every call of them."""

from __future__ import annotations

import ast

from portwright.port.rewrite import has_star
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, ClassInfo, Scope

_SAME_OBJECT = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "float", "double", "half", "requires_grad_", "apply"}
)
_HARMLESS = frozenset({"torch.save", "torch.manual_seed"})
_HARMLESS_BUILTINS = frozenset({"print", "isinstance", "hasattr", "id", "type", "repr", "str"})


def uses_of(file: File, info: ClassInfo) -> list[ast.expr]:
    """Every place that names a class of the file's top level."""
    reference = f"{file.source.path}::{info.node.name}"
    names = [n for n in file.tree.all(ast.Name) if n.id == info.node.name and isinstance(n.ctx, ast.Load)]
    return [n for n in names if file.resolve(n) == reference]


def find_instances(file: File, info: ClassInfo) -> dict[ast.AST, list[ast.Call]] | None:
    """The calls of a class's instances, by the function (or module) around them; None where some may be unseen."""
    name = info.node.name
    if info.node not in file.tree.module.body or file.names.project.is_used_elsewhere(file.source.path, name):
        return None
    search = _Search(file)
    for use in uses_of(file, info):
        parent = file.tree.parents.get(use)
        if isinstance(parent, ast.Call) and parent.func is use:
            if not search.follow(parent):
                return None
        elif not is_aside(file, use):
            return None
    if not search.names or not search.close():
        return None
    found: dict[ast.AST, list[ast.Call]] = {}
    for call in search.calls:
        around = file.tree.function_of(call) or file.tree.module
        if isinstance(around, ast.Lambda):
            return None
        found.setdefault(around, []).append(call)
    return found or None


def is_aside(file: File, use: ast.AST) -> bool:
    """`super(Net, self)`, an annotation, isinstance."""
    parent = file.tree.parents.get(use)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        return parent.func.id in ("super", "isinstance")
    return isinstance(parent, (ast.arg, ast.AnnAssign, *FUNCTIONS))


class _Search:
    def __init__(self, file: File) -> None:
        self.file = file
        self.names: list[tuple[Scope, str]] = []
        self.calls: list[ast.Call] = []

    def follow(self, value: ast.expr) -> bool:
        """Notes where a value goes; False where that is not understood."""
        tree = self.file.tree
        parent = tree.parents.get(value)
        while isinstance(parent, ast.Attribute) and parent.attr in _SAME_OBJECT:
            call = tree.parents.get(parent)
            if not isinstance(call, ast.Call) or call.func is not parent:
                return False
            value, parent = call, tree.parents.get(call)
        if isinstance(parent, ast.Expr):
            return True
        if isinstance(parent, ast.Attribute):
            return True  # its parameters, its state
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            if isinstance(target, ast.Name):
                return self._note(tree.scope_of(target), target.id)
            return False
        if isinstance(parent, ast.Call):
            if parent.func is value:
                self.calls.append(parent)
                return True
            return self._pass(parent, value, None)
        if isinstance(parent, ast.keyword):
            outer = tree.parents.get(parent)
            return isinstance(outer, ast.Call) and self._pass(outer, value, parent.arg)
        return False

    def _note(self, scope: Scope, name: str) -> bool:
        found = scope.lookup(name)
        if found is None:
            return False
        if (found[0], name) not in self.names:
            self.names.append((found[0], name))
        return True

    def _pass(self, call: ast.Call, value: ast.expr, keyword: str | None) -> bool:
        func = call.func
        if isinstance(func, ast.Name) and func.id in _HARMLESS_BUILTINS and self.file.resolve(func) is None:
            return True
        if self.file.resolve(func) in _HARMLESS:
            return True
        found = self.file.tree.scope_of(func).lookup(func.id) if isinstance(func, ast.Name) else None
        if found is None or len(found[1]) != 1 or has_star(call):
            return False
        function = found[1][0].node
        if not isinstance(function, FUNCTIONS) or function.args.vararg or function.args.kwarg:
            return False
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
        name = (
            keyword
            if keyword is not None
            else (names[call.args.index(value)] if value in call.args else None)
        )
        return name is not None and self._note(self.file.tree.scopes[function], name)

    def close(self) -> bool:
        """Follows every use of every name found, until there are no more."""
        place = 0
        while place < len(self.names):
            scope, name = self.names[place]
            place += 1
            for node in self.file.tree.all(ast.Name):
                if node.id != name or not isinstance(node.ctx, ast.Load):
                    continue
                found = self.file.tree.scope_of(node).lookup(name)
                if found is not None and found[0] is scope and not self.follow(node):
                    return False
        return True
