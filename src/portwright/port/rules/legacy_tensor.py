from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import is_constant, unwrap
from portwright.port.rule import File, Rule

_DTYPES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "LongTensor": "int64", "IntTensor": "int32",
    "ShortTensor": "int16", "ByteTensor": "uint8", "CharTensor": "int8", "BoolTensor": "bool", "Tensor": "",
}  # fmt: skip


def _is_values(file: File, node: ast.expr, depth: int) -> bool:
    """Whether an argument is certainly values, a list or an array of numpy's, and not a size."""
    if isinstance(node, (ast.List, ast.ListComp)):
        return True
    if isinstance(node, ast.Call):
        if (file.resolve(node.func) or "").startswith("numpy."):
            return True
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in (
            "astype",
            "tolist",
            "copy",
            "reshape",
        )
        return (
            is_method
            and isinstance(node.func, ast.Attribute)
            and _is_values(file, node.func.value, depth + 1)
        )
    if isinstance(node, ast.Name) and depth < 5:
        found = file.tree.scope_of(node).lookup(node.id)
        bindings = found[1] if found else []
        return bool(bindings) and all(
            b.kind == "assign" and b.value is not None and _is_values(file, b.value, depth + 1)
            for b in bindings
        )
    return False


def _modern(file: File, call: ast.Call, dtype: str) -> list[Edit]:
    """torch.tensor for values in a list, torch.empty for sizes in numbers."""
    if call.keywords or not call.args or not isinstance(call.func, ast.Attribute):
        return []
    if not dtype and "set_default" in file.source.text:
        return []  # torch.Tensor makes what was made the default
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return []
    if len(call.args) == 1 and _is_values(file, call.args[0], 0):
        maker = "tensor"
        # torch.Tensor makes floats of the default dtype, which values without a point would not become.
        dtype = dtype or "float32"
    elif len(call.args) > 1 or file.flow.kind(call.args[0]) in ("number", "shape"):
        maker = "empty"
    else:
        return []
    torch_name = file.segment(call.func.value)
    last = call.args[-1]
    _, end = file.source.span(last)
    edits = [file.replace(call.func, f"{torch_name}.{maker}")]
    return [*edits, Edit(end, end, f", dtype={torch_name}.{dtype}")] if dtype else edits


class LegacyTensor(Rule):
    """Finds Variable and the typed constructors of old torch: torch.FloatTensor, torch.Tensor and their kin.

    ## Why
    They make tensors on the host whatever device is asked for, and Cerebras's SDK refuses them while a model is
    built. Variable has done nothing since torch 0.4.

    ## Example
    ```python
    from torch.autograd import Variable

    x = Variable(torch.FloatTensor([1.0, 2.0]))
    ```

    ## Instead
    ```python
    x = torch.tensor([1.0, 2.0], dtype=torch.float32)
    ```

    ## Safety
    Safe where one can see what the argument is: values in a list or an array of numpy's, or sizes. What the constructor would make of
    a variable (values or a size) cannot be told, and is left to you.
    """

    code = "PW308"
    name = "legacy-tensor"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("Variable", "Tensor(")
    cure = "Use the tensor itself for Variable, and torch.tensor(values, dtype=...) or torch.empty(sizes, dtype=...) for the typed constructors."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.calls("torch.autograd.Variable"):
            flags = {k.arg: k.value for k in call.keywords}
            plain = len(call.args) == 1 and all(
                n in ("volatile", "requires_grad") and is_constant(v, False) for n, v in flags.items()
            )
            edits = (
                unwrap(file, call, call.args[0])
                if plain and not isinstance(call.args[0], ast.Starred)
                else []
            )
            yield self.report(file, call, "Variable does nothing any more", edits)
        for name, dtype in _DTYPES.items():
            for call in file.calls(f"torch.{name}"):
                yield self.report(
                    file, call, f"torch.{name} is a constructor of old torch", _modern(file, call, dtype)
                )


RULE = LegacyTensor()
