from __future__ import annotations

import ast

from portwright.port.rewrite import legal_import, text_of
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call, last_name


def is_masked_reduction(file: File, call: ast.Call) -> bool:
    """Whether the result of `masked_select(...)` is only summed or averaged."""
    outer = file.tree.parent_call(file.tree.parents[call])
    is_plain = is_method_call(outer, "sum", "mean") and not outer.args and not outer.keywords
    return is_plain and last_name(call.func) == "masked_select"


class MaskedReduction(Rule):
    """Puts legal forms in the place of masked_select(...).sum() and .mean().

    ## Why
    How many elements are selected depends on the data, and the sum does not need to know.

    ## Example
    ```python
    class Loss(nn.Module):
        def forward(self, x, mask):
            return x.masked_select(mask).mean()
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Loss(nn.Module):
        def forward(self, x, mask):
            return legal.masked_mean(x, mask)
    ```

    ## Safety
    Safe: zeros are added where nothing is selected; equal up to rounding.
    """

    code = "PW208"
    needs = ("known_operations",)
    safety = "safe"
    words = ("masked_select",)
    cure = "Use legal.masked_sum or legal.masked_mean."

    def find(self, file: File) -> Findings:
        for call in file.operations("masked_select"):
            if not is_masked_reduction(file, call) or not file.flow.in_step(call) or call.keywords:
                continue
            attribute = file.tree.parents[call]
            outer = file.tree.parents[attribute]
            is_method = is_method_call(call) and file.resolve(call.func) is None
            parts = [*([call.func.value] if is_method else []), *call.args]  # type: ignore[attr-defined]
            legal, imports = legal_import(file)
            text = (
                f"{legal}.masked_{last_name(attribute)}({', '.join(text_of(file, part) for part in parts)})"
            )
            message = "the number of selected values depends on the data"
            yield self.report(file, outer, message, [file.replace(outer, text)], imports)
