from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import has_star, keyword, set_keyword
from portwright.port.rule import File, Rule
from portwright.port.tree import FUNCTIONS, Binding, is_name

_MAKERS = ("zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "empty")
_TENSOR_SIGNS = frozenset(
    [
        "size",
        "shape",
        "dim",
        "view",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "mean",
        "sum",
        "matmul",
        "softmax",
        "flatten",
        "expand",
        "masked_fill",
        "contiguous",
        "device",
        "dtype",
        "float",
        "long",
        "bool",
        "repeat",
        "chunk",
        "argmax",
        "new_zeros",
        "new_ones",
        "detach",
        "type_as",
    ]
)


# Layers whose input is one tensor; recurrent ones may be given packed sequences, which have no device.
_TAKES_A_TENSOR = re.compile(
    r"(torch\.nn|portwright\.layers\.legal)\.(\w*Embedding\w*|Linear|Bilinear|Conv\w+|\w+Norm\w*|\w+Pool\w+)$"
)


def _goes_into_layer(file: File, call: ast.AST, name: str) -> bool:
    """Whether a call is that of such a layer of the class, with the name as its input."""
    if not (isinstance(call, ast.Call) and call.args and is_name(call.args[0], name)):
        return False
    if not (isinstance(call.func, ast.Attribute) and is_name(call.func.value, "self")):
        return False
    info = file.tree.class_of(call)
    made = info.attributes.get(call.func.attr, []) if info else []
    return bool(made) and all(
        isinstance(m, ast.Call) and _TAKES_A_TENSOR.match(file.resolve(m.func) or "") for m in made
    )


def _is_moved(file: File, call: ast.Call) -> bool:
    """`torch.zeros(3).to(x.device)` says where it goes."""
    outer = file.tree.parents.get(call)
    return isinstance(outer, ast.Attribute) and outer.attr in ("to", "cuda", "type_as", "type")


def _stays_tensor(file: File, binding: Binding) -> bool:
    """The argument itself, or what a layer or function made of it."""
    return binding.kind == "parameter" or (binding.kind == "assign" and file.flow.is_tensor(binding.value))


def _input_of(file: File, call: ast.Call) -> str | None:
    """An argument of the function around a call that is used as a tensor, and always given."""
    function = file.tree.function_of(call)
    if not isinstance(function, FUNCTIONS):
        return None
    arguments = function.args
    required = [*arguments.posonlyargs, *arguments.args][
        : len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    ]
    scope = file.tree.scopes[function]
    for argument in required:
        bindings = scope.bindings.get(argument.arg, ())
        if argument.arg in ("self", "cls") or not all(_stays_tensor(file, b) for b in bindings):
            continue
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in _TENSOR_SIGNS
                and isinstance(node.value, ast.Name)
                and node.value.id == argument.arg
            ) or _goes_into_layer(file, node, argument.arg):
                return argument.arg
    return None


class TensorMadeInForward(Rule):
    """Finds tensors that forward() makes on the host, and makes them on the device of an input.

    ## Why
    Without a device a new tensor lies on the host. A traced step cannot mix it with its own, and the Cerebras front
    end refuses the copy.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            positions = torch.arange(x.size(1))
            return x + positions
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            positions = torch.arange(x.size(1), device=x.device)
            return x + positions
    ```

    ## Safety
    Safe: the same values, on the device of an argument of forward that is certainly a tensor; where none is, it is
    left to you.
    """

    code = "PW304"
    name = "tensor-made-in-forward"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("torch.", "zeros", "ones", "arange", "tensor(", "full(", "eye(", "from_numpy")
    cure = "Make it on the device of an input (device=x.device), or once in __init__ with register_buffer."

    def find(self, file: File) -> Iterator[Finding]:
        for name in _MAKERS:
            for call in file.calls(f"torch.{name}"):
                if has_star(call) or keyword(call, "device") is not None or keyword(call, "out") is not None:
                    continue
                if not _is_moved(file, call):
                    yield from self._report(file, call, name)
        for call in file.calls("torch.from_numpy"):
            if not _is_moved(file, call):
                yield from self._report(file, call, "from_numpy")

    def _report(self, file: File, call: ast.Call, name: str) -> Iterator[Finding]:
        if not file.flow.in_forward(call) and not file.flow.is_called_from_step(call):
            return
        tensor = _input_of(file, call)
        message = f"torch.{name}() makes a tensor on the host in forward()"
        if tensor is None:
            if file.flow.in_forward(call):
                yield self.report(file, call, message)
        elif name == "from_numpy":
            _, end = file.source.span(call)
            yield self.report(file, call, message, [Edit(end, end, f".to({tensor}.device)")])
        else:
            yield self.report(file, call, message, set_keyword(file, call, "device", f"{tensor}.device"))


RULE = TensorMadeInForward()
