from __future__ import annotations

import ast
import re

from portwright.port.finding import Edit
from portwright.port.rewrite import has_star, is_constant, text_of, torch_name, unwrap
from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import is_loaded, only_value
from portwright.port.tree import MethodCall, is_method_call, words

_DTYPES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "LongTensor": "int64", "IntTensor": "int32",
    "ShortTensor": "int16", "ByteTensor": "uint8", "CharTensor": "int8", "BoolTensor": "bool", "Tensor": "",
}  # fmt: skip


_ASKS = re.compile(rb"requires_grad(_\(|\s*=\s*True)")
_NEW = words("""zeros ones empty full rand randn randint arange linspace eye tensor from_numpy zeros_like ones_like rand_like
    randn_like""")


def _is_values(file: File, node: ast.expr, depth: int) -> bool:
    """Whether an argument surely has values (a list or numpy array), and is not a size."""
    if isinstance(node, (ast.List, ast.ListComp)):
        return True
    if isinstance(node, ast.Call) and (file.resolve(node.func) or "").startswith("numpy."):
        return True
    if is_method_call(node, "astype", "tolist", "copy", "reshape"):
        return _is_values(file, node.func.value, depth + 1)
    values = file.tree.assigned_values(node) if depth < 5 else []
    return bool(values) and all(_is_values(file, value, depth + 1) for value in values)


def _modern(file: File, call: ast.Call, dtype: str) -> list[Edit]:
    """Rewrites to torch.tensor for a list of values, to torch.empty for sizes."""
    module = torch_name(file, call)
    if call.keywords or not call.args or module is None or has_star(call):
        return []
    if "set_default" in file.source.text:
        return []  # the old constructors ignore the default device
    if len(call.args) == 1 and _is_values(file, call.args[0], 0):
        # The old constructors share an array's memory if they can; as_tensor does too.
        maker = "tensor" if isinstance(call.args[0], (ast.List, ast.ListComp)) else "as_tensor"
        # torch.Tensor makes floats of the default dtype; torch.tensor would make integers of integers.
        dtype = dtype or "get_default_dtype()"
    elif len(call.args) > 1 or file.flow.kind(call.args[0]) in ("number", "shape"):
        maker = "empty"
    else:
        return []
    last = call.args[-1]
    _, end = file.source.span(last)
    edits = [file.replace(call.func, f"{module}.{maker}")]
    return [*edits, Edit(end, end, f", dtype={module}.{dtype}")] if dtype else edits


def _like(file: File, call: MethodCall) -> list[Edit]:
    """Rewrites x.new(sizes) and x.new().resize_(sizes) to new_empty, x.new([values]) to new_tensor."""
    if call.keywords or has_star(call):
        return []
    _, end = file.source.span(call.func)
    start, name = end - len("new"), "new_empty"
    if not call.args:
        outer = file.tree.parents[call]
        if not is_method_call(file.tree.parent_call(outer), "resize_"):
            return []
        _, end = file.source.span(outer)
    elif len(call.args) == 1 and isinstance(call.args[0], (ast.List, ast.ListComp)):
        name = "new_tensor"
    elif len(call.args) == 1 and file.flow.kind(call.args[0]) not in ("number", "shape"):
        return []
    return [Edit(start, end, name)]


def _is_of_tensor(file: File, owner: ast.expr) -> bool:
    is_data = isinstance(owner, ast.Attribute) and owner.attr == "data"
    return is_data or is_method_call(owner, "detach") or file.flow.is_tensor(owner)


def _choice(file: File, node: ast.IfExp) -> ast.expr | None:
    """The host's side of `torch.cuda.FloatTensor if cuda else torch.FloatTensor`."""
    for one, other in ((node.body, node.orelse), (node.orelse, node.body)):
        there, here = file.resolve(one) or "", file.resolve(other) or ""
        if there.startswith("torch.cuda.") and here == there.replace("torch.cuda.", "torch.", 1):
            return other if here.removeprefix("torch.") in _DTYPES else None
    return None


def _answer(file: File, test: ast.expr, depth: int = 0) -> bool | None:
    """The value of a constant test, such as `True if False else False`, or of a name that is only assigned one."""
    if isinstance(test, ast.Constant) or depth > 5:
        return bool(test.value) if isinstance(test, ast.Constant) else None
    if isinstance(test, ast.IfExp):
        answer = _answer(file, test.test, depth + 1)
        return None if answer is None else _answer(file, test.body if answer else test.orelse, depth + 1)
    value = only_value(file, test)
    return None if value is None else _answer(file, value, depth + 1)


def _has_no_gradient(file: File, node: ast.expr, depth: int) -> bool:
    """Whether a tensor surely has no gradient: it is new or from a loader, and only moved or cast."""
    if isinstance(node, ast.Call):
        head, _, last = (file.resolve(node.func) or "").rpartition(".")
        if head == "torch":
            return (last in _NEW or last in _DTYPES) and not any(
                k.arg in ("requires_grad", None) for k in node.keywords
            )
    if is_method_call(node, "cuda", "cpu", "to", "float", "long", "type"):
        return _has_no_gradient(file, node.func.value, depth)
    if depth >= 5 or _ASKS.search(file.source.data):
        return False
    values = file.tree.assigned_values(node)
    return (file.flow.is_tensor(node) and is_loaded(file, node)) or (
        bool(values) and all(_has_no_gradient(file, value, depth + 1) for value in values)
    )


class LegacyTensor(Rule):
    """Finds Variable and the typed constructors of old torch: torch.FloatTensor, torch.Tensor and their kin.

    ## Why
    They make tensors on the host whatever device is asked for, and Cerebras's SDK refuses them while a model is
    built. Since torch 0.4 Variable only takes the gradient away.

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
    Safe where one can see what the argument is: values in a list become torch.tensor of the same dtype, an array of numpy's
    torch.as_tensor (both share its memory where the dtype is the same), sizes torch.empty. Variable(x) is `x.detach()`,
    and x itself where x is certainly new or a loader's. What the constructor would make of a variable (values or a
    size) cannot be told, and is left to you, as are files that set a default device. Unsafe where a CUDA type is chosen by more
    than a constant.
    """

    code = "PW308"
    needs = ("tensors_on_device",)
    safety = "safe"
    words = ("Variable", "Tensor(", "torch.cuda.", ".new(")
    cure = "Use x.detach() for Variable(x), and torch.tensor(values, dtype=...) or torch.empty(sizes, dtype=...) for the typed constructors."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.autograd.Variable"):
            flags = {k.arg: k.value for k in call.keywords}
            plain = len(call.args) == 1 and all(
                n in ("volatile", "requires_grad") and is_constant(v, False) for n, v in flags.items()
            )
            edits = []
            if plain and _has_no_gradient(file, call.args[0], 0):
                edits = unwrap(file, call, call.args[0])
            elif plain and not isinstance(call.args[0], ast.Starred):
                edits = [file.replace(call, f"{text_of(file, call.args[0])}.detach()")]
            yield self.report(file, call, "Variable only takes the gradient away", edits)
        for choice in file.tree.all(ast.IfExp):
            host = _choice(file, choice)
            if host is not None:
                edits = [file.replace(choice, file.segment(host))]
                answer = _answer(file, choice.test)
                is_told = answer is not None and host is (choice.body if answer else choice.orelse)
                yield self.report(
                    file,
                    choice,
                    f"{file.segment(host)} is chosen by whether there is CUDA",
                    edits,
                    safety="safe" if is_told else "unsafe",
                )
        for call in file.methods("new"):
            if file.flow.in_step(call) and _is_of_tensor(file, call.func.value):
                yield self.report(file, call, ".new() is a constructor of old torch", _like(file, call))
        for name, dtype in _DTYPES.items():
            for call in file.calls(f"torch.{name}"):
                yield self.report(
                    file, call, f"torch.{name} is a constructor of old torch", _modern(file, call, dtype)
                )
