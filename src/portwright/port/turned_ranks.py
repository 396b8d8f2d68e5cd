"""How many dimensions a tensor has, where the text says so."""

from __future__ import annotations

import ast

from portwright.port.rule import File
from portwright.port.tree import ClassInfo
from portwright.port.turned_tables import words

_MAKERS = frozenset({"zeros", "ones", "empty", "rand", "randn", "full"})
_KEEP = words(
    """
    float long double half to cuda cpu type transpose permute detach contiguous requires_grad_ clone t exp sin cos
    """
)
_SHAPES = frozenset({"expand", "repeat", "view", "reshape"})
_MAX_DEPTH = 12


def rank_of(file: File, info: ClassInfo | None, node: ast.expr, depth: int = 0) -> int | None:
    """The number of dimensions of a value, by how it is made; None where that cannot be told."""
    if depth > _MAX_DEPTH:
        return None

    def inner(part: ast.expr) -> int | None:
        return rank_of(file, info, part, depth + 1)

    if isinstance(node, ast.Subscript):
        rank = inner(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if rank is None or not all(isinstance(i, (ast.Slice, ast.Constant)) for i in indices):
            return None
        if any(isinstance(i, ast.Constant) and i.value is Ellipsis for i in indices):
            return None
        taken = sum(isinstance(i, ast.Constant) and i.value is not None for i in indices)
        added = sum(isinstance(i, ast.Constant) and i.value is None for i in indices)
        return rank - taken + added
    if isinstance(node, ast.Name):
        found = file.tree.scope_of(node).lookup(node.id)
        earlier = [
            b
            for b in (found[1] if found else [])
            if b.kind == "assign" and getattr(b.node, "lineno", 0) < node.lineno
        ]
        if found is None or not earlier or any(b.kind not in ("assign", "other") for b in found[1]):
            return None
        value = max(earlier, key=lambda b: b.node.lineno).value  # type: ignore[attr-defined]
        return inner(value) if value is not None else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and info is not None:
        values = info.attributes.get(node.attr, [])
        return inner(values[0]) if len(values) == 1 else None
    if isinstance(node, ast.BinOp):
        ranks = [r for r in (inner(node.left), inner(node.right)) if r is not None]
        return max(ranks, default=None)
    if not isinstance(node, ast.Call):
        return None
    head, _, last = (file.resolve(node.func) or "").rpartition(".")
    if head == "torch" and last in _MAKERS:
        shape = node.args[0] if node.args else None
        if isinstance(shape, (ast.Tuple, ast.List)):
            return len(shape.elts)
        return len(node.args) if last != "full" and not _starred(node) else None
    if head == "torch" and last == "arange":
        return 1
    if (head in ("torch", "torch.nn", "torch.autograd")) and last in ("Parameter", "Variable", *_KEEP):
        return inner(node.args[0]) if node.args else None
    if not isinstance(node.func, ast.Attribute):
        return None
    method = node.func.attr
    if isinstance(node.func.value, ast.Name) and info is not None and method in info.attributes:
        made = info.attributes[method][0]
        if isinstance(made, ast.Call) and file.resolve(made.func) == "torch.nn.Embedding" and node.args:
            of_ids = inner(node.args[0])
            return None if of_ids is None else of_ids + 1
        return None
    rank = inner(node.func.value)
    if method in _SHAPES and node.args and not _starred(node):
        return len(node.args) if len(node.args) > 1 else None
    if rank is None:
        return None
    return (
        rank + 1
        if method == "unsqueeze"
        else rank - 1
        if method == "squeeze" and node.args
        else rank
        if method in _KEEP
        else None
    )


def _starred(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Starred) for a in call.args)
