"""Recognises code that runs only without an executor of PopTorch."""

from __future__ import annotations

import ast

from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS


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
