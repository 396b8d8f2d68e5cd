"""PopTorch's executors in source code: what is wrapped, and what reaches the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from portwright.port.rule import File

_WRAPPERS = ("poptorch.trainingModel", "poptorch.inferenceModel")


def is_wrapped(file: File, node: ast.expr) -> bool:
    """Whether a name or attribute is given an executor anywhere in the file."""
    text = file.segment(node)
    info = file.tree.class_of(node)
    for call in file.calls(*_WRAPPERS):
        statement = file.tree.statement_of(call)
        if not isinstance(statement, ast.Assign) or text not in [file.segment(t) for t in statement.targets]:
            continue
        same_function = file.tree.function_of(statement) is file.tree.function_of(node)
        if same_function or (text.startswith("self.") and file.tree.class_of(statement) is info):
            return True
    return False


def reaches(file: File, optimizer: ast.Call, wraps: Sequence[ast.Call]) -> bool:
    """Whether an optimizer is an argument of a wrapper, directly or by its name."""
    if any(file.tree.is_within(optimizer, wrap) for wrap in wraps):
        return True
    statement = file.tree.statement_of(optimizer)
    if not isinstance(statement, ast.Assign):
        return False
    names = {file.segment(target) for target in statement.targets}
    for wrap in wraps:
        given = [*wrap.args[2:3], *(k.value for k in wrap.keywords if k.arg == "optimizer")]
        if any(file.segment(value) in names for value in given):
            return True
    return False


def is_guarded(file: File, node: ast.AST) -> bool:
    """Whether a node runs only without an executor: under a condition that speaks of the device."""
    for outer in file.tree.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp)):
            text = file.segment(outer.test).lower()
            if any(word in text for word in ("ipu", "pop", "compute_mode", "device", "executor")):
                return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False
