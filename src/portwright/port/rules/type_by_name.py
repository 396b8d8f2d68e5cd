from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import swap_method
from portwright.port.rule import File, Rule

_CASTS = {
    "FloatTensor": "float", "DoubleTensor": "double", "HalfTensor": "half", "BFloat16Tensor": "bfloat16",
    "LongTensor": "long", "IntTensor": "int", "ShortTensor": "short", "ByteTensor": "byte", "BoolTensor": "bool",
}  # fmt: skip


class TypeByName(Rule):
    """Replaces x.type(y.type()) by x.to(y), and x.type(torch.FloatTensor) by x.float().

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
    Safe: both give the dtype and device of the other tensor; a cast leaves the device as it is, which is where the step runs.
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
            if not file.flow.in_step(call):
                continue
            inner = call.args[0]
            cast = _cast(file, inner)
            if cast is not None:
                edits = swap_method(file, call, f"{cast}()")
                yield self.report(
                    file, call, f"{file.segment(inner)} names a type of the host's tensors", edits
                )
            elif (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr == "type"
                and not inner.args
            ):
                edits = swap_method(file, call, f"to({file.segment(inner.func.value)})")
                yield self.report(file, call, "a dtype and device are passed on by their name", edits)


def _cast(file: File, node: ast.expr) -> str | None:
    """The cast that a type of old torch's stands for: float for torch.FloatTensor, or for its name."""
    name = node.value if isinstance(node, ast.Constant) else file.resolve(node)
    if not isinstance(name, str) or not name.startswith("torch."):
        return None
    return _CASTS.get(name.removeprefix("torch.").removeprefix("cuda."))


RULE = TypeByName()
