"""How the host uses a value that it reads from a tensor, for several rules."""

from __future__ import annotations

import ast

from portwright.port.rule import File


def is_running_sum(file: File, call: ast.Call) -> bool:
    """Whether a read is only added to a sum: `total += loss.item() * n`."""
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.AugAssign):
            return isinstance(outer.op, ast.Add)
        if not isinstance(outer, ast.BinOp):
            return False
    return False


def needs_of_read(file: File, call: ast.Call) -> tuple[str, ...]:
    """The need that a read breaks: a read only every so many steps, outside forward(), breaks the weaker one."""
    seldom = file.flow.is_gated(call) and not file.flow.in_forward(call)
    return ("no_rare_host_reads",) if seldom else ("no_host_reads",)


def short(file: File, node: ast.AST) -> str:
    """A node's text on one line, not too long for a message."""
    text = " ".join(file.segment(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
