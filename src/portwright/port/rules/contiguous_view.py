from __future__ import annotations

from portwright.port.finding import Edit
from portwright.port.rewrite import writes_in_place
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call


class ContiguousView(Rule):
    """Joins .contiguous().view(...) to .reshape(...).

    ## Why
    contiguous() asks for a memory layout, and layouts belong to the target's compiler; reshape says what is meant.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.transpose(1, 2).contiguous().view(x.size(0), -1)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.transpose(1, 2).reshape(x.size(0), -1)
    ```

    ## Safety
    Safe: contiguous() copies a tensor where its memory is in another order and reshape() where a view cannot show it, so both
    give the same values, shape and gradients. Only a write can tell a copy from a view: unsafe in a file that changes
    tensors in place (`x += 1`, `x[0] = 1`, `x.add_(1)`, `inplace=True`, `out=`). Unsafe, too, where the receiver may be
    something else than a tensor.
    """

    code = "PW303"
    needs = ("free_layout",)
    safety = "safe"
    words = ("contiguous",)
    cure = "Use reshape, which copies only where it has to."

    def find(self, file: File) -> Findings:
        for call in file.methods("view"):
            inner = call.func.value
            if not is_method_call(inner, "contiguous"):
                continue
            if inner.args or inner.keywords or call.keywords or not call.args or not file.flow.in_step(call):
                continue
            if len(call.args) == 1 and file.flow.kind(call.args[0]) == "dtype":
                continue
            _, inner_end = file.source.span(inner.func)
            _, end = file.source.span(call.func)
            start = inner_end - len("contiguous")
            if b"#" not in file.source.data[start:end]:
                edits = [Edit(start, end, "reshape")]
                yield self.report(
                    file,
                    call,
                    "a view of a contiguous copy is a reshape",
                    edits,
                    safety="safe"
                    if file.flow.is_tensor(inner.func.value) and not writes_in_place(file)
                    else "unsafe",
                )
