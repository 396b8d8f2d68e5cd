from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call

_REDUCTIONS = ("any", "all", "sum", "max", "min", "mean", "isnan", "isinf", "equal", "allclose", "norm")


def _reads_values(file: File, test: ast.expr) -> ast.expr | None:
    """The part of a condition that reads a tensor's values, not only its shape or type, or whether it is None."""
    match test:
        case ast.BoolOp():
            return next(filter(None, (_reads_values(file, value) for value in test.values)), None)
        case ast.UnaryOp():
            return _reads_values(file, test.operand)
        case ast.Compare():
            if all(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in test.ops):
                return None
            return test if any(_is_computed(file, side) for side in (test.left, *test.comparators)) else None
    return test if _is_computed(file, test) else None


def _is_computed(file: File, node: ast.expr) -> bool:
    """Whether a node is a computed tensor; a plain argument of forward() may be a flag."""
    if isinstance(node, ast.Call) and file.resolve(node.func) in ("torch.equal", "torch.allclose"):
        return True
    if is_method_call(node, *_REDUCTIONS):
        return file.flow.is_tensor(node.func.value) or file.flow.is_tensor(node)
    if isinstance(node, ast.BinOp):
        return _is_computed(file, node.left) or _is_computed(file, node.right)
    if isinstance(node, ast.Subscript):
        return file.flow.is_tensor(node.value) and not isinstance(node.slice, ast.Constant)
    return isinstance(node, (ast.Call, ast.Compare)) and file.flow.is_tensor(node)


class DataDependentBranch(Rule):
    """Finds branches in forward() that depend on the values of a tensor.

    ## Why
    A traced step follows one side for ever, or is refused because the condition has no value yet.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.where(x.sum() > 0, x, -x)
    ```

    ## Safety
    Manual: both sides have to be computed, which is right only where neither fails.
    """

    code = "PW206"
    needs = ("no_value_branches",)
    words = ("if ", "while ", "assert ")
    cure = "Compute both sides and choose with torch.where, or fold the condition into a setting."

    def find(self, file: File) -> Findings:
        branches = [*file.tree.all(ast.If, ast.While), *file.tree.all(ast.IfExp, ast.Assert)]
        for test in (node.test for node in branches):
            value = _reads_values(file, test)
            if value is not None and file.flow.in_forward(test):
                yield self.report(
                    file, test, f"a branch depends on values of a tensor: {file.segment(value)[:60]}"
                )
