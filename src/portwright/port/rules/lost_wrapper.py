from __future__ import annotations

import ast

from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call

_RETURN_MODULE = ("to", "cuda", "cpu", "half", "float", "double", "requires_grad_")


def _is_wrapped(file: File, node: ast.expr) -> bool:
    """Whether a name or attribute is assigned an executor in the file."""
    text = file.segment(node)
    info = file.tree.class_of(node)
    for call in file.calls("poptorch.trainingModel", "poptorch.inferenceModel"):
        statement = file.tree.statement_of(call)
        if not isinstance(statement, ast.Assign) or text not in [file.segment(t) for t in statement.targets]:
            continue
        same_function = file.tree.function_of(statement) is file.tree.function_of(node)
        if same_function or (text.startswith("self.") and file.tree.class_of(statement) is info):
            return True
    return False


class LostWrapper(Rule):
    """Finds a PopTorch executor that is replaced by the module inside it.

    ## Why
    An executor passes .to() and its kin on to the module that it wraps, which returns itself. Assigned back, the
    wrapper is gone and training goes on, silently, on the CPU.

    ## Example
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.net = poptorch.trainingModel(net)
            self.net = self.net.to(device)
    ```

    ## Instead
    ```python
    import poptorch

    class Trainer:
        def build(self, net, device):
            self.net = poptorch.trainingModel(net)
    ```

    ## Safety
    Unsafe, on purpose: taking the move out lets training run on the IPU, which it did not.
    """

    code = "PW601"
    needs = ("poptorch_executor",)
    safety = "unsafe"
    words = ("poptorch",)
    cure = "Leave the move out: the executor places the model, and .to() returns the plain module."

    def find(self, file: File) -> Findings:
        for statement in file.tree.all(ast.Assign):
            value = statement.value
            if not is_method_call(value, *_RETURN_MODULE) or len(statement.targets) != 1:
                continue
            receiver = value.func.value
            if file.segment(statement.targets[0]) == file.segment(receiver) and _is_wrapped(file, receiver):
                message = f"the executor is lost: .{value.func.attr}() returns the module inside it"
                yield self.report(file, statement, message, remove_statement(file, statement))
