from __future__ import annotations

import ast

from portwright.port.rewrite import is_constant
from portwright.port.rule import File, Findings, Rule


def _iterates_groups(file: File, node: ast.expr) -> bool:
    return any(
        b.kind == "iterate" and b.value is not None and "param_groups" in file.segment(b.value)
        for b in file.tree.bindings(node)
    )


class RateSetByHand(Rule):
    """Finds learning rates that are written into param_groups.

    ## Why
    The compiled step has its own copy of the rate, which an assignment on the host does not reach.

    ## Example
    ```python
    for group in optimizer.param_groups:
        group["lr"] = 0.1
        print(torch.__version__)
    ```

    ## Instead
    ```python
    schedule = {"scheduler": "Constant", "val": 0.1}  # learning_rate in params.yaml
    ```

    ## Safety
    Manual: the schedule has to be a function of the step.
    """

    code = "PW404"
    needs = ("rate_as_schedule",)
    words = ("param_groups",)
    cure = "Give the rate as a schedule, a function of the step, such as the schedule in params.yaml."

    def find(self, file: File) -> Findings:
        for node in file.tree.all(ast.Assign, ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not isinstance(target, ast.Subscript) or not is_constant(target.slice, "lr"):
                continue
            if "param_groups" in file.segment(target.value) or _iterates_groups(file, target.value):
                yield self.report(file, node, "the learning rate is set on the host")
