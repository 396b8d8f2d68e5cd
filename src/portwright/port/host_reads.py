"""How a host read is used: what several rules have to tell apart."""

from __future__ import annotations

import ast

from portwright.port.rule import File


def is_running_sum(file: File, call: ast.Call) -> bool:
    """Whether a read only adds to a sum: `total += loss.item() * n`."""
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.AugAssign):
            return isinstance(outer.op, ast.Add)
        if not isinstance(outer, ast.BinOp):
            return False
    return False


def concerned(file: File, call: ast.Call) -> tuple[str, ...]:
    """The targets that mind a read: every so many steps, after the call, only a traced step does."""
    seldom = file.flow.is_gated(call) and not file.flow.in_forward(call)
    return ("csx",) if seldom else ("csx", "ipu", "rdu")


def short(file: File, node: ast.AST) -> str:
    """A node's text on one line, not too long for a message."""
    text = " ".join(file.segment(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
