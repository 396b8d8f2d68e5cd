from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, last_name


def _mentions_shape(node: ast.expr) -> bool:
    """Whether an expression computes with a size; plain `int(x.size(0))` does not."""
    if not any(
        isinstance(part, ast.BinOp) and not isinstance(part.op, ast.FloorDiv) for part in ast.walk(node)
    ):
        return False
    return any(
        (isinstance(part, ast.Attribute) and part.attr == "shape") or is_method_call(part, "size")
        for part in ast.walk(node)
    )


class ShapeArithmetic(Rule):
    """Finds layers and sizes that forward() works out from the shape of its input by division or rounding.

    ## Why
    Under tracing these numbers become constants of the compiled step. They are right for one shape only, and nothing
    says so when another comes.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x[:, : int(x.size(1) * 0.5)]
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self, length):
            super().__init__()
            self.half = length // 2

        def forward(self, x):
            return x[:, : self.half]
    ```

    ## Safety
    Manual. Plain products and quotients of dimensions are not reported, since tracing folds them; rounding a float to
    a size is.
    """

    code = "PW105"
    needs = ("no_shape_arithmetic",)
    words = ("size(", "shape")
    cure = "Compute such numbers from fixed settings in __init__, and assert in forward that the shape is the expected one."

    def find(self, file: File) -> Findings:
        reported = set()
        for call in file.tree.all(ast.Call):
            if last_name(call.func) not in ("int", "round", "ceil", "floor") or not call.args:
                continue
            function = file.tree.function_of(call)
            if function not in reported and file.flow.in_forward(call) and _mentions_shape(call.args[0]):
                reported.add(function)
                yield self.report(file, call, "this size is rounded from the shape of an input")
