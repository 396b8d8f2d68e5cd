from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rule import File, Rule


def _is_in_model(file: File, node: ast.AST) -> bool:
    """Layers and buffers that a module makes for itself."""
    info = file.tree.class_of(node)
    return info is not None and file.names.is_module_node(info.node)


class DoublePrecision(Rule):
    """Finds float64 and int8 in a model or step.

    ## Why
    The Cerebras front end casts from and to float32, half precisions and 16 to 64-bit integers only; the IPU has no
    float64 either.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.double() * 2
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x * 2
    ```

    ## Safety
    Manual: another precision gives other numbers.
    """

    code = "PW339"
    name = "double-precision"
    targets = ("csx", "ipu")
    safety = "manual"
    words = ("double", "float64", "int8")
    cure = "Use float32, or an int32 where int8 was meant; tables from numpy want .float()."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("double"):
            if not call.args and file.flow.in_step(call):
                yield self.report(file, call, "float64 is not there")
        for name, shown in (("float64", "float64"), ("double", "float64"), ("int8", "int8")):
            for node in file.uses(f"torch.{name}"):
                if file.flow.in_step(node) or _is_in_model(file, node):
                    yield self.report(file, node, f"{shown} is not there")


RULE = DoublePrecision()
