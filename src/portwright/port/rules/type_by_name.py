from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import swap_method
from portwright.port.rule import File, Rule


class TypeByName(Rule):
    """Replaces x.type(y.type()) by x.to(y).

    ## Why
    A type's name says where a tensor lies, and the names of an accelerator's tensors cannot be made into one.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return self.table.type(x.type())
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return self.table.to(x)
    ```

    ## Safety
    Safe: both give the dtype and device of the other tensor.
    """

    code = "PW338"
    name = "type-by-name"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = (".type(",)
    cure = "Use .to(x), which takes dtype and device from a tensor."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("type"):
            if len(call.args) != 1 or call.keywords or not isinstance(call.func, ast.Attribute):
                continue
            inner = call.args[0]
            if (
                not isinstance(inner, ast.Call)
                or not isinstance(inner.func, ast.Attribute)
                or inner.func.attr != "type"
                or inner.args
            ):
                continue
            if file.flow.in_step(call):
                edits = swap_method(file, call, f"to({file.segment(inner.func.value)})")
                yield self.report(file, call, "a dtype and device are passed on by their name", edits)


RULE = TypeByName()
