"""Recognises boolean masks in source code."""

from __future__ import annotations

import ast

from portwright.port.rule import File

_MASK_METHODS = frozenset(
    {"bool", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or"}
)


def is_mask(file: File, index: ast.expr) -> bool:
    """Whether an index is known to be a tensor of bools."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    if isinstance(index, ast.Compare) and not any(
        isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in index.ops
    ):
        return file.flow.is_tensor(index)
    if isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute):
        return index.func.attr in _MASK_METHODS and file.flow.is_tensor(index)
    if isinstance(index, ast.Name):
        found = file.tree.scope_of(index).lookup(index.id)
        values = [b.value for b in found[1] if b.kind == "assign" and b.value is not None] if found else []
        return bool(values) and all(not isinstance(v, ast.Name) and is_mask(file, v) for v in values)
    return False


def is_masked_reduction(file: File, call: ast.Call) -> bool:
    """Whether the result of `masked_select(...)` is only summed or averaged."""
    attribute = file.tree.parents.get(call)
    outer = file.tree.parents.get(attribute) if attribute is not None else None
    return (
        isinstance(attribute, ast.Attribute)
        and attribute.attr in ("sum", "mean")
        and isinstance(outer, ast.Call)
        and outer.func is attribute
        and not outer.args
        and not outer.keywords
        and "masked_select" in (getattr(call.func, "attr", ""), getattr(call.func, "id", ""))
    )
