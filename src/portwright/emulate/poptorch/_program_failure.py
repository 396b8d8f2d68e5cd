"""An op of a frozen program that fails when it runs: the user's line belongs to it, which is not on the stack any more."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._errors import RangeError, StateError, refuse
from portwright.emulate.poptorch._program_code import FILE, FIRST_LINE
from portwright.emulate.poptorch._program_graph import ProgramNode
from portwright.emulate.poptorch._program_source import is_users


def explain(error: Exception, nodes: Sequence[ProgramNode]) -> Exception:
    """The error with the line of the op that raised it; what the user's own code raised (poptorch.CPU) stays as it is."""
    if isinstance(error, poptorch_core.Error):
        return error
    node, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            node = _node(trace, nodes)
        elif node is not None and is_users(trace.tb_frame.f_code.co_filename):
            return error
        trace = trace.tb_next
    if node is None:
        return error
    where = f" [{node.line}]" if node.line else ""
    kind = RangeError if isinstance(error, IndexError) else StateError
    explained = refuse(f"{node.name}: {str(error).strip().rstrip('.')}.{where}", kind)
    explained.location = node.line or ""
    return explained


def _node(trace: TracebackType, nodes: Sequence[ProgramNode]) -> ProgramNode | None:
    number = trace.tb_lineno - FIRST_LINE
    return nodes[number] if 0 <= number < len(nodes) else None
