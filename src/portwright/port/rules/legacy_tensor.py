from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import is_constant, unwrap
from portwright.port.rule import File, Rule
from portwright.port.spelling import torch_name

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
    module = torch_name(file)
    if call.keywords or not call.args or module is None:
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
    last = call.args[-1]
    _, end = file.source.span(last)
    edits = [file.replace(call.func, f"{module}.{maker}")]
    return [*edits, Edit(end, end, f", dtype={module}.{dtype}")] if dtype else edits


def _like(file: File, call: ast.Call) -> list[Edit]:
    """new_empty for x.new(sizes) and x.new().resize_(sizes), new_tensor for x.new([values])."""
    assert isinstance(call.func, ast.Attribute)
    if call.keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
        return []
    _, start = file.source.span(call.func)
    name = Edit(start - len("new"), start, "new_empty")
    if not call.args:
        outer = file.tree.parents.get(call)
        resize = file.tree.parents.get(outer) if outer is not None else None
        if (
            not isinstance(outer, ast.Attribute)
            or outer.attr != "resize_"
            or not isinstance(resize, ast.Call)
        ):
            return []
        return [Edit(start - len("new"), file.source.span(outer)[1], "new_empty")]
    if len(call.args) == 1 and isinstance(call.args[0], (ast.List, ast.ListComp)):
        return [Edit(start - len("new"), start, "new_tensor")]
    kinds = {file.flow.kind(argument) for argument in call.args}
    if len(call.args) > 1 or kinds <= {"number", "shape"}:
        return [name]
    return []


def _is_of_tensor(file: File, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    owner = call.func.value
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute) and owner.func.attr == "detach":
        return True
    return (isinstance(owner, ast.Attribute) and owner.attr == "data") or file.flow.is_tensor(owner)


def _choice(file: File, node: ast.IfExp) -> ast.expr | None:
    """The host's side of `torch.cuda.FloatTensor if cuda else torch.FloatTensor`."""
    for one, other in ((node.body, node.orelse), (node.orelse, node.body)):
        there, here = file.resolve(one) or "", file.resolve(other) or ""
        if there.startswith("torch.cuda.") and here == there.replace("torch.cuda.", "torch.", 1):
            return other if here.removeprefix("torch.") in _DTYPES else None
    return None


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
    words = ("Variable", "Tensor(", "torch.cuda.", ".new(")
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
        for choice in file.tree.all(ast.IfExp):
            host = _choice(file, choice)
            if host is not None:
                edits = [file.replace(choice, file.segment(host))]
                yield self.report(
                    file, choice, f"{file.segment(host)} is chosen by whether there is CUDA", edits
                )
        for call in file.methods("new"):
            if file.flow.in_step(call) and _is_of_tensor(file, call):
                yield self.report(file, call, ".new() is a constructor of old torch", _like(file, call))
        for name, dtype in _DTYPES.items():
            for call in file.calls(f"torch.{name}"):
                yield self.report(
                    file, call, f"torch.{name} is a constructor of old torch", _modern(file, call, dtype)
                )


RULE = LegacyTensor()
