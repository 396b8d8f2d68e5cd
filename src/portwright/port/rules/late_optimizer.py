from __future__ import annotations

import ast
from collections.abc import Sequence

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_name


def _reaches(file: File, optimizer: ast.Call, wraps: Sequence[ast.Call]) -> bool:
    """Whether an optimizer is passed to a wrapper, directly or through a name."""
    if any(file.tree.is_within(optimizer, wrap) for wrap in wraps):
        return True
    statement = file.tree.statement_of(optimizer)
    if not isinstance(statement, ast.Assign):
        return False
    names = {file.segment(target) for target in statement.targets}
    for wrap in wraps:
        given = [*wrap.args[2:3], *(k.value for k in wrap.keywords if k.arg == "optimizer")]
        same_class = file.tree.class_of(wrap) is file.tree.class_of(statement)
        if any(file.segment(v) in names and (same_class or isinstance(v, ast.Name)) for v in given):
            return True
        if _is_passed_on(file, statement) and any(_is_given(file, value) for value in given):
            return True
    return False


def _is_passed_on(file: File, statement: ast.Assign) -> bool:
    """Whether the assigned name is returned or passed to a call in the same function."""
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    frame = file.tree.function_of(statement) or file.tree.module
    for node in ast.walk(frame):
        handed: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            handed = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.Return):
            handed = [*node.value.elts] if isinstance(node.value, ast.Tuple) else [node.value]
        if any(isinstance(value, ast.Name) and value.id in names for value in handed):
            return True
    return False


def _is_given(file: File, value: ast.expr) -> bool:
    """Whether a value is a parameter, or an attribute set from one, so that any caller may choose it."""
    if isinstance(value, ast.Attribute) and is_name(value.value, "self"):
        made = file.tree.attribute_values(value)
        return bool(made) and all(isinstance(m, ast.Name) and _is_given(file, m) for m in made)
    found = file.tree.bindings(value)
    return bool(found) and all(b.kind == "parameter" for b in found)


class LateOptimizer(Rule):
    """Finds an optimizer that is made after poptorch.trainingModel, and never given to it.

    ## Why
    The optimizer's settings are compiled into the step. One that is made later never reaches the device, whatever its
    schedule says.

    ## Example
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.net = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=1e-3))
            self.opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    ```

    ## Instead
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.opt = torch.optim.Adam(net.parameters(), lr=1e-2)
            self.net = poptorch.trainingModel(net, optimizer=self.opt)
    ```

    ## Safety
    Manual: which of the two optimizers is meant is yours to say.
    """

    code = "PW602"
    needs = ("poptorch_executor",)
    words = ("poptorch",)
    cure = "Give trainingModel the optimizer that you train with, or call setOptimizer(optimizer) after it is made and after each change."

    def find(self, file: File) -> Findings:
        wraps = file.calls("poptorch.trainingModel")
        if not wraps or file.methods("setOptimizer"):
            return
        for call in [*file.calls("torch.optim."), *file.calls("poptorch.optim.")]:
            name = file.resolve(call.func) or ""
            is_optimizer = "lr_scheduler" not in name and name.rpartition(".")[2][:1].isupper()
            if is_optimizer and not _reaches(file, call, wraps):
                message = "this optimizer never reaches the device: trainingModel was given another, or none"
                yield self.report(file, call, message)
