from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call


def _is_in_model(file: File, node: ast.AST) -> bool:
    """Whether a node is in the code of an nn.Module."""
    info = file.tree.class_of(node)
    return info is not None and file.names.is_module_node(info.node)


def _is_for_all(file: File, node: ast.AST) -> bool:
    """Whether the dtype applies to a whole model, or as the default to all new tensors."""
    call = file.tree.parents.get(node)
    if not isinstance(call, ast.Call) or node not in [*call.args, *(k.value for k in call.keywords)]:
        return False
    return file.resolve(call.func) == "torch.set_default_dtype" or (
        is_method_call(call, "to") and file.flow.kind(call.func.value) == "module"
    )


class DoublePrecision(Rule):
    """Finds float64 and int8 in a model or step, and models that are made of float64 as a whole.

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
    needs = ("no_float64",)
    words = ("double", "float64", "int8")
    cure = "Use float32, or an int32 where int8 was meant; tables from numpy want .float()."

    def find(self, file: File) -> Findings:
        for call in file.methods("double"):
            if not call.args and (file.flow.in_step(call) or file.flow.kind(call.func.value) == "module"):
                yield self.report(file, call, "float64 is not there")
        for name in ("float64", "double", "int8"):
            for node in file.uses(f"torch.{name}"):
                if file.flow.in_step(node) or _is_in_model(file, node) or _is_for_all(file, node):
                    yield self.report(file, node, f"{name.replace('double', 'float64')} is not there")
