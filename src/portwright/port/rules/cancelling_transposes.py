from __future__ import annotations

import re

from portwright.port.rewrite import const, text_of, writes_in_place
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import MethodCall, is_method_call

_STOPS_GRADIENTS = re.compile(rb"no_grad|inference_mode|set_grad_enabled|enable_grad")


def _order(call: MethodCall) -> tuple[str, list[int]] | None:
    """The method that changes the layout, and its literal dimensions."""
    if call.func.attr not in ("transpose", "permute") or call.keywords:
        return None
    listed = getattr(call.args[0], "elts", call.args) if len(call.args) == 1 else call.args
    numbers = [number for number in map(const, listed) if isinstance(number, int)]
    return (call.func.attr, numbers) if numbers and len(numbers) == len(listed) else None


def _cancel(first: tuple[str, list[int]], second: tuple[str, list[int]]) -> bool:
    if first[0] != second[0]:
        return False
    if first[0] == "transpose":
        return len(first[1]) == 2 and sorted(first[1]) == sorted(second[1])
    size = len(first[1])
    if size != len(second[1]) or sorted(d % size for d in first[1]) != list(range(size)):
        return False
    return [first[1][d % size] % size for d in second[1]] == list(range(size))


class CancellingTransposes(Rule):
    """Takes out pairs of transposes or permutations that cancel each other.

    ## Why
    On these machines moving data into another layout is work, and a pair that cancels does it twice for nothing.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return self.layer(x.transpose(1, 2).transpose(1, 2))
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return self.layer(x)
    ```

    ## Safety
    Safe where the dimensions are fixed and the receiver is a tensor: the second change undoes the first, so values, strides and
    gradients are those of the tensor itself. Unsafe where it may be an array of numpy's, whose transpose() takes a
    whole order, in a file that changes tensors in place, which could tell the tensor from a view of it, and in a file that
    stops gradients (no_grad and its kin), where the view of a tensor passes none on and the tensor itself does.
    """

    code = "PW302"
    needs = ("free_layout",)
    safety = "safe"
    words = ("transpose(", "permute(", ".t(")
    cure = "Leave both out."

    def find(self, file: File) -> Findings:
        for outer in file.methods("transpose", "permute"):
            inner = outer.func.value
            if not is_method_call(inner):
                continue
            first, second = _order(inner), _order(outer)
            if first is None or second is None or not _cancel(first, second):
                continue
            edits = [file.replace(outer, text_of(file, inner.func.value))]
            is_tensor = first[0] == "permute" or file.flow.is_tensor(inner.func.value)
            is_view_alike = not writes_in_place(file) and not _STOPS_GRADIENTS.search(file.source.data)
            yield self.report(
                file,
                outer,
                "these two changes of layout cancel each other",
                edits,
                safety="safe" if is_tensor and is_view_alike else "unsafe",
            )
