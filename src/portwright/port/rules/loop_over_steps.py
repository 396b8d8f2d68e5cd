from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rule import File, Rule


def _is_length(file: File, node: ast.expr) -> bool:
    """Whether a node is a dimension of a tensor, also through names; not a setting or a number of layers."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            return file.flow.kind(node.func.value) in ("tensor", None)
        return (
            getattr(node.func, "id", "") == "len"
            and len(node.args) == 1
            and file.flow.is_tensor(node.args[0])
        )
    if isinstance(node, ast.BinOp):
        return _is_length(file, node.left) or _is_length(file, node.right)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Name):
        found = file.tree.scope_of(node).lookup(node.id)
        return found is not None and any(
            b.value is not None
            and (
                _is_length(file, b.value) if b.kind == "assign" else b.kind == "unpack" and _is_shape(b.value)
            )
            for b in found[1]
        )
    return False


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "size" and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "shape"


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

    def find(self, file: File) -> Iterator[Finding]:
        for loop in file.tree.all(ast.For):
            if (
                not isinstance(loop.iter, ast.Call)
                or getattr(loop.iter.func, "id", "") != "range"
                or not file.flow.in_forward(loop)
            ):
                continue
            if any(_is_length(file, argument) for argument in loop.iter.args) and _indexes_by(loop):
                yield self.report(
                    file, loop, f"a loop over {file.segment(loop.iter)} is unrolled when it is traced"
                )
