from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, is_name


def _is_rest(node: ast.expr) -> bool:
    """Whether a node is the rest of a sequence: a difference from its length."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return any(
        (isinstance(part, ast.Call) and is_name(part.func, "len"))
        or is_method_call(part, "size")
        or (isinstance(part, ast.Attribute) and part.attr == "shape")
        for part in ast.walk(node.left)
    )


def _bounds_a_slice(file: File, call: ast.Call) -> bool:
    if any(isinstance(outer, ast.Slice) for outer in file.tree.ancestors(call)):
        return True
    statement = file.tree.statement_of(call)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name, function = statement.targets[0].id, file.tree.function_of(call) or file.tree.module
    return any(
        isinstance(node, ast.Slice) and any(is_name(n, name) for n in ast.walk(node))
        for node in ast.walk(function)
    )


class RaggedWindow(Rule):
    """Finds windows over a sequence whose last one is shorter.

    ## Why
    `min(bptt, len(source) - 1 - i)` makes every window of one length but the last, which then has a shape of its own.

    ## Example
    ```python
    def get_batch(source, i, bptt):
        seq_len = min(bptt, len(source) - 1 - i)
        data = source[i : i + seq_len]
        return torch.as_tensor(data)
    ```

    ## Instead
    ```python
    def get_batch(source, i, bptt):
        data = source[i : i + bptt]  # callers stop before the last, shorter window
        return torch.as_tensor(data)
    ```

    ## Safety
    Manual: dropping samples changes the result, and padding needs a mask in your loss.
    """

    code = "PW108"
    needs = ("static_shapes",)
    words = ("min(",)
    cure = "Drop the last window, or pad it to the full length and weight the loss by a mask."

    def find(self, file: File) -> Findings:
        for call in file.tree.all(ast.Call):
            is_least = is_name(call.func, "min") and len(call.args) == 2
            if is_least and any(map(_is_rest, call.args)) and _bounds_a_slice(file, call):
                yield self.report(file, call, "the last window is shorter than the others")
