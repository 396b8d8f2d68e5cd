from __future__ import annotations

import ast
import re

from portwright.port.rewrite import swap_method
from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import is_loaded
from portwright.port.tree import is_method_call

_CASTS = {
    "FloatTensor": "float", "DoubleTensor": "double", "HalfTensor": "half", "BFloat16Tensor": "bfloat16",
    "LongTensor": "long", "IntTensor": "int", "ShortTensor": "short", "ByteTensor": "byte", "BoolTensor": "bool",
}  # fmt: skip
_DEVICE = re.compile(rb"cuda|device|\.to\(")


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
    Safe for a tensor: `.to(y)` gives the dtype and device of y, as its type's name does. A cast by the name of a host's type
    also moves a tensor to the host, which `.float()` does not: safe for what a loader gives, and in a file that names no
    device; unsafe otherwise, and unsafe by the name of a CUDA type. Unsafe, too, where the receiver may be a module, which casts only its
    floating-point parts.
    """

    code = "PW338"
    needs = ("tensors_on_device",)
    safety = "safe"
    words = (".type(",)
    cure = "Use .to(x), which takes dtype and device from a tensor."

    def find(self, file: File) -> Findings:
        for call in file.methods("type"):
            if len(call.args) != 1 or call.keywords or not file.flow.in_step(call):
                continue
            inner, is_tensor = call.args[0], file.flow.is_tensor(call.func.value)
            cast = _cast(file, inner)
            if cast is not None:
                edits = swap_method(file, call, f"{cast}()")
                stays = is_loaded(file, call.func.value) or not _DEVICE.search(file.source.data)
                yield self.report(
                    file, call, f"{file.segment(inner)} names a type of the host's tensors", edits,
                    safety="safe" if is_tensor and stays else "unsafe",
                )  # fmt: skip
            elif is_method_call(inner, "type") and not inner.args:
                edits = swap_method(file, call, f"to({file.segment(inner.func.value)})")
                yield self.report(
                    file, call, "a dtype and device are passed on by their name", edits,
                    safety="safe" if is_tensor else "unsafe",
                )  # fmt: skip


def _cast(file: File, node: ast.expr) -> str | None:
    """The cast method for an old torch type or its name: float for torch.FloatTensor."""
    name = node.value if isinstance(node, ast.Constant) else file.resolve(node)
    if not isinstance(name, str) or not name.startswith("torch."):
        return None
    return _CASTS.get(name.removeprefix("torch.").removeprefix("cuda."))
