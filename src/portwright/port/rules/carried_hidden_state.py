from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, last_name


def _is_returned_by_model(file: File, node: ast.Assign, target: str) -> bool:
    """Whether the step also assigns the target from a call: `out, hidden = model(x, hidden)`."""
    region = file.flow.region_of(node)
    return region is not None and any(
        isinstance(other, ast.Assign)
        and isinstance(other.value, ast.Call)
        and isinstance(other.targets[0], ast.Tuple)
        and any(file.segment(element) == target for element in other.targets[0].elts)
        for other in ast.walk(region)
    )


class CarriedHiddenState(Rule):
    """Finds recurrent state that the training loop carries from batch to batch by detaching it.

    ## Why
    A compiled step takes tensors and returns tensors. State that the loop keeps between steps has to be among them.

    ## Example
    ```python
    def train(model, batches, criterion, optimizer, hidden):
        for x, y in batches:
            hidden = hidden.detach()
            out, hidden = model(x, hidden)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
    ```

    ## Instead
    ```python
    def train(model, batches, criterion, optimizer):
        for x, y in batches:
            out = model(x)  # the state starts anew with each window
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
    ```

    ## Safety
    Manual: it changes what a step takes and gives.
    """

    code = "PW110"
    needs = ("state_in_step",)
    words = ("hidden", "state", "repackage")
    cure = "Pass the state into the step and return it from there, or keep it in a buffer of the model."

    def find(self, file: File) -> Findings:
        for node in file.tree.all(ast.Assign):
            if len(node.targets) != 1 or not isinstance(node.targets[0], (ast.Name, ast.Attribute)):
                continue
            target = file.segment(node.targets[0])
            value = node.value
            if (
                not isinstance(value, ast.Call)
                or file.flow.region_of(node) is None
                or not file.flow.in_training_step(node)
            ):
                continue
            name = last_name(value.func)
            itself = is_method_call(value, "detach") and file.segment(value.func.value) == target
            detached = itself or (
                name == "tuple" and "detach" in file.segment(value) and target in file.segment(value)
            )
            repackaged = "repackage" in name and any(file.segment(a) == target for a in value.args)
            if repackaged or (detached and _is_returned_by_model(file, node, target)):
                yield self.report(file, node, f"'{target}' is carried from step to step")
