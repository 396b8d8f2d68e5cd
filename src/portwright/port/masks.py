"""Recognises boolean masks in source code."""

from __future__ import annotations

import ast

from portwright.port.rule import File
from portwright.port.tree import is_method_call, last_name, words

_MASK_METHODS = words("bool eq ne lt le gt ge isnan isinf logical_not logical_and logical_or")


def is_mask(file: File, index: ast.expr) -> bool:
    """Whether an index is known to be a tensor of bools."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    if isinstance(index, ast.Compare) and not any(
        isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in index.ops
    ):
        return file.flow.is_tensor(index)
    if is_method_call(index):
        return index.func.attr in _MASK_METHODS and file.flow.is_tensor(index)
    bindings = file.tree.bindings(index)
    values = [b.value for b in bindings if b.kind == "assign" and b.value is not None]
    return bool(values) and all(not isinstance(v, ast.Name) and is_mask(file, v) for v in values)


def is_masked_reduction(file: File, call: ast.Call) -> bool:
    """Whether the result of `masked_select(...)` is only summed or averaged."""
    outer = file.tree.parent_call(file.tree.parents[call])
    is_plain = is_method_call(outer, "sum", "mean") and not outer.args and not outer.keywords
    return is_plain and last_name(call.func) == "masked_select"
