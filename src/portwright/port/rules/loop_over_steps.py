from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, is_name


def _is_length(file: File, node: ast.expr) -> bool:
    """Whether a node is a dimension of a tensor, also through names; not a setting or a number of layers."""
    match node:
        case ast.Call(func=ast.Attribute(value, "size")):
            return file.flow.kind(value) in ("tensor", None)
        case ast.Call(func=ast.Name("len"), args=[value]):
            return file.flow.is_tensor(value)
        case ast.BinOp():
            return _is_length(file, node.left) or _is_length(file, node.right)
        case ast.Subscript(ast.Attribute(attr="shape")):
            return True
    return any(
        b.value is not None
        and (_is_length(file, b.value) if b.kind == "assign" else b.kind == "unpack" and _is_shape(b.value))
        for b in file.tree.bindings(node)
    )


def _is_shape(node: ast.expr) -> bool:
    is_size = is_method_call(node, "size") and not node.args
    return is_size or (isinstance(node, ast.Attribute) and node.attr == "shape")


def _indexes_by(loop: ast.For) -> bool:
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    return any(
        isinstance(node, ast.Subscript)
        and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node.slice))
        for statement in loop.body
        for node in ast.walk(statement)
    )


class LoopOverSteps(Rule):
    """Finds loops in forward() over the positions of a tensor.

    ## Why
    Tracing unrolls such a loop: the compiled step grows with the length, and is right for that length only.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            outputs = []
            for t in range(x.size(1)):
                outputs.append(self.cell(x[:, t]))
            return torch.stack(outputs, dim=1)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return self.layer(x)
    ```

    ## Safety
    Manual. Loops over layers, and over a fixed number, are not reported.
    """

    code = "PW313"
    needs = ("no_loops_over_positions",)
    words = ("for ",)
    cure = "Let one operation do all steps (cumsum, a convolution, attention), keep the number of steps fixed, or use the target's own loop (poptorch.for_loop)."

    def find(self, file: File) -> Findings:
        for loop in file.tree.all(ast.For):
            counted = loop.iter
            if not isinstance(counted, ast.Call) or not is_name(counted.func, "range"):
                continue
            if (
                file.flow.in_forward(loop)
                and any(_is_length(file, a) for a in counted.args)
                and _indexes_by(loop)
            ):
                message = f"a loop over {file.segment(counted)} is unrolled when it is traced"
                yield self.report(file, loop, message)
