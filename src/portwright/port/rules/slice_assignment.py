from __future__ import annotations

import ast

from portwright.port.rewrite import const
from portwright.port.rule import File, Findings, Rule


class SliceAssignment(Rule):
    """Finds assignments to parts of a tensor in forward().

    ## Why
    Tracers follow values; an assignment to a slice changes memory under them.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            out = torch.zeros_like(x)
            out[:, 1:] = x[:, :-1]
            return out
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    ```

    ## Safety
    Manual. The Cerebras front end takes slice assignments, so csx is not concerned.
    """

    code = "PW306"
    needs = ("no_writes_in_place",)
    words = ("] =", "]=")
    cure = "Build the tensor from its parts: torch.cat, torch.stack or torch.where."

    def find(self, file: File) -> Findings:
        for node in file.tree.all(ast.Assign, ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if (
                    isinstance(target, ast.Subscript)
                    and not isinstance(const(target.slice), str)
                    and file.flow.in_forward(node)
                    and file.flow.is_tensor(target.value)
                ):
                    yield self.report(
                        file, target, f"a part of the tensor '{file.segment(target.value)}' is assigned"
                    )
