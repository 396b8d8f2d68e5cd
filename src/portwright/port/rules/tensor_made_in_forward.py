from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from portwright.port.devices import is_device_value, is_host
from portwright.port.finding import Edit
from portwright.port.names import split_reference
from portwright.port.places import device_safety, is_own, tensor_at_hand
from portwright.port.project import read_source
from portwright.port.rewrite import has_star, keyword, set_keyword
from portwright.port.rule import File, Findings, Rule
from portwright.port.source import UnreadableError
from portwright.port.tree import is_method_call, words

_MAKERS = ("zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "empty")
_CASTS = words("float half bfloat16 double long int bool")
_MOVES = words("to cuda cpu type_as type")
_READS = words("item tolist numpy")
_DRAWS = words("normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ geometric_ cauchy_")
_HOST_READERS = words("int float list range len")


def _uses(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """The call that makes a tensor, and each use of the names that it is assigned to."""
    yield call
    statement = file.tree.statement_of(call)
    if not isinstance(statement, ast.Assign):
        return
    for target in statement.targets:
        if isinstance(target, ast.Name):
            scope = file.tree.scope_of(target)
            yield from (
                n
                for n in file.tree.all(ast.Name)
                if n.id == target.id and isinstance(n.ctx, ast.Load) and file.tree.scope_of(n) is scope
            )


def _methods_of(file: File, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The chain of methods called on a value, each with its result."""
    while is_method_call(outer := file.tree.parent_call(file.tree.parents[node])):
        yield outer.func.attr, outer
        node = outer


def _is_for_the_host(file: File, call: ast.Call) -> bool:
    """Whether values are drawn into the tensor, or it is read or moved, so that it is made on the host on purpose."""
    for use in _uses(file, call):
        methods = {method for method, _ in _methods_of(file, use)}
        if methods & (_READS | _DRAWS) or (methods & _MOVES and use is call):
            return True
        outer = file.tree.parents.get(use)
        if isinstance(outer, ast.Call) and use in outer.args:
            name = file.resolve(outer.func) or str(getattr(outer.func, "id", ""))
            if name in _HOST_READERS or name.startswith(("torch.nn.init.", "numpy.", "torch.nn.utils.rnn.")):
                return True
    return False


def _is_own_choice(file: File, device: ast.expr) -> bool:
    return (
        is_device_value(file, device)
        and not isinstance(device, ast.Constant)
        and is_own(file, device)
        and device_safety(file) == "safe"
    )


def _is_host_of_another_file(file: File, device: ast.expr) -> bool:
    """Whether the device is imported from another file that sets it to the host, as a layout's utils.py does."""
    reference = file.resolve(device) if isinstance(device, ast.Name) else None
    if reference is None or "::" not in reference:
        return False
    path, name = split_reference(reference)
    project = file.names.project
    try:
        other = File(project.overlay.get(path) or read_source(path), project, file.targets)
    except UnreadableError:
        return False
    values = [b.value for b in other.tree.scope.bindings.get(name, ()) if b.value is not None]
    return len(values) == 1 and is_host(other, values[0])


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
    Safe: the same values, made where a tensor lies that the function is certainly given. On a host without an
    accelerator that is the same place. Beside one, the original could only use the tensor where torch moves it by
    itself (an index, a number), with the same result. It is left alone where the host has a reason: values are drawn
    into it, it is read (.item(), .tolist(), int()), or it is moved by the script. A cast that follows is done before
    the move, since a table of doubles may not reach every device. Where no tensor is at hand it is left to you.
    """

    code = "PW304"
    needs = ("tensors_on_device",)
    safety = "safe"
    words = ("torch.", "zeros", "ones", "arange", "tensor(", "full(", "eye(", "from_numpy")
    cure = "Make it on the device of an input (device=x.device), or once in __init__ with register_buffer."

    def find(self, file: File) -> Findings:
        for name in (*_MAKERS, "from_numpy"):
            for call in file.calls(f"torch.{name}"):
                given = keyword(call, "device")
                if has_star(call) or keyword(call, "out") is not None or not file.flow.in_step(call):
                    continue
                if _is_for_the_host(file, call):
                    continue
                if (
                    given is None
                    or _is_own_choice(file, given.value)
                    or _is_host_of_another_file(file, given.value)
                ):
                    yield from self._report(file, call, name)
                elif is_host(file, given.value) and file.flow.in_forward(call):
                    yield self.report(file, call, f"torch.{name}() makes a tensor on the host in forward()")

    def _report(self, file: File, call: ast.Call, name: str) -> Findings:
        tensor = tensor_at_hand(file, call)
        place = "forward()" if file.flow.in_forward(call) else "a step"
        message = f"torch.{name}() makes a tensor on the host in {place}"
        casts = list(takewhile(lambda step: step[0] in _CASTS, _methods_of(file, call)))
        whole = casts[-1][1] if casts else call
        if tensor is None:
            if file.flow.in_forward(call) or keyword(call, "device") is not None:
                yield self.report(file, call, message)
        elif name == "from_numpy" or (whole is not call and keyword(call, "device") is None):
            _, end = file.source.span(whole)
            yield self.report(file, call, message, [Edit(end, end, f".to({tensor}.device)")])
        else:
            yield self.report(file, call, message, set_keyword(file, call, "device", f"{tensor}.device"))
