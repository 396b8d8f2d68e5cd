"""Recognises PopTorch's executors (wrapped models) in source code, and what is passed to them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, is_name

_WRAPPERS = ("poptorch.trainingModel", "poptorch.inferenceModel")


def is_wrapped(file: File, node: ast.expr) -> bool:
    """Whether a name or attribute is assigned an executor in the file."""
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
    """Whether an optimizer is passed to a wrapper, directly or through a name."""
    if any(file.tree.is_within(optimizer, wrap) for wrap in wraps):
        return True
    statement = file.tree.statement_of(optimizer)
    if not isinstance(statement, ast.Assign):
        return False
    names = {file.segment(target) for target in statement.targets}
    for wrap in wraps:
        given = [*wrap.args[2:3], *(k.value for k in wrap.keywords if k.arg == "optimizer")]
        same_class = file.tree.class_of(wrap) is file.tree.class_of(statement)
        if any(file.segment(v) in names and (same_class or isinstance(v, ast.Name)) for v in given):
            return True
        if _is_passed_on(file, statement) and any(_is_given(file, value) for value in given):
            return True
    return False


def _is_passed_on(file: File, statement: ast.Assign) -> bool:
    """Whether the assigned name is returned or passed to a call in the same function."""
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    frame = file.tree.function_of(statement) or file.tree.module
    for node in ast.walk(frame):
        handed: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            handed = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.Return):
            handed = [*node.value.elts] if isinstance(node.value, ast.Tuple) else [node.value]
        if any(isinstance(value, ast.Name) and value.id in names for value in handed):
            return True
    return False


def _is_given(file: File, value: ast.expr) -> bool:
    """Whether a value is a parameter, or an attribute set from one, so that any caller may choose it."""
    if isinstance(value, ast.Attribute) and is_name(value.value, "self"):
        made = file.tree.attribute_values(value)
        return bool(made) and all(isinstance(m, ast.Name) and _is_given(file, m) for m in made)
    found = file.tree.bindings(value)
    return bool(found) and all(b.kind == "parameter" for b in found)


def is_guarded(file: File, node: ast.AST) -> bool:
    """Whether a node is under a condition that mentions the device, and so may run only without an executor."""
    for outer in file.tree.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp)):
            text = file.segment(outer.test).lower()
            if any(word in text for word in ("ipu", "pop", "compute_mode", "device", "executor")):
                return True
        if isinstance(outer, FUNCTIONS):
            return False
    return False
