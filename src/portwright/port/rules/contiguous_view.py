from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import writes_in_place
from portwright.port.rule import File, Rule


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
    Safe: the same values in the same order. Unsafe in a function that writes into tensors: the copy was a place of its own.
    """

    code = "PW303"
    name = "contiguous-view"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("contiguous",)
    cure = "Use reshape, which copies only where it has to."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("view"):
            inner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if (
                not isinstance(inner, ast.Call)
                or not isinstance(inner.func, ast.Attribute)
                or inner.func.attr != "contiguous"
            ):
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
                    safety="unsafe" if writes_in_place(file, call) else "safe",
                )


RULE = ContiguousView()
