from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.masks import is_mask, is_masked_reduction
from portwright.port.rule import File, Rule
from portwright.port.tree import last_name


class DataDependentShape(Rule):
    """Finds results in a step whose shape depends on values: nonzero, masked_select, unique, indexing by a mask.

    ## Why
    An accelerator compiles a step for fixed shapes. How many elements a mask selects is known only when it runs.

    ## Example
    ```python
    class Loss(nn.Module):
        def forward(self, x, mask):
            return x[mask > 0].mean()
    ```

    ## Instead
    ```python
    class Loss(nn.Module):
        def forward(self, x, mask):
            kept = mask > 0
            return torch.where(kept, x, torch.zeros_like(x)).sum() / kept.sum()
    ```

    ## Safety
    Manual, except `masked_select(...).sum()` and `.mean()` for csx, which PW208 rewrites.
    """

    code = "PW207"
    needs = ("static_shapes",)
    words = ("nonzero", "masked_select", "unique", "argwhere", "[", "where(")
    cure = "Keep the shape: torch.where, a product with the mask, or ignore_index in the loss."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.operations("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"):
            receiver = file.flow.kind(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if (
                file.flow.in_step(call)
                and not is_masked_reduction(file, call)
                and receiver not in ("number", "text", "module")
            ):
                yield self.report(file, call, f"the shape of {last_name(call.func)}() depends on values")
        for call in file.calls("torch.where"):
            if len(call.args) == 1 and not call.keywords and file.flow.in_step(call):
                yield self.report(
                    file, call, "the shape of torch.where() with one argument depends on values"
                )
        for node in file.tree.all(ast.Subscript):
            if isinstance(node.ctx, ast.Load) and is_mask(file, node.slice) and file.flow.in_step(node):
                yield self.report(
                    file,
                    node,
                    f"indexing by the mask {file.segment(node.slice)[:40]} gives a shape that depends on values",
                )
