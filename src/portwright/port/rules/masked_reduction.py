from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.masks import is_masked_reduction
from portwright.port.rewrite import legal_import, text_of
from portwright.port.rule import File, Rule


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

    def find(self, file: File) -> Iterator[Finding]:
        for call in [*file.calls("torch.masked_select"), *file.methods("masked_select")]:
            if not is_masked_reduction(file, call) or not file.flow.in_step(call) or call.keywords:
                continue
            attribute = file.tree.parents[call]
            outer = file.tree.parents[attribute]
            assert isinstance(attribute, ast.Attribute)
            parts = list(call.args)
            if file.resolve(call.func) is None and isinstance(call.func, ast.Attribute):
                parts.insert(0, call.func.value)
            legal, imports = legal_import(file)
            text = f"{legal}.masked_{attribute.attr}({', '.join(text_of(file, part) for part in parts)})"
            yield self.report(
                file,
                outer,
                "the number of selected values depends on the data",
                [file.replace(outer, text)],
                imports,
            )
