from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.rules.masked_reduction import is_masked_reduction
from portwright.port.tree import is_method_call, last_name, words

_MASK_METHODS = words("bool eq ne lt le gt ge isnan isinf logical_not logical_and logical_or")


def _is_mask(file: File, index: ast.expr) -> bool:
    """Whether an index is known to be a tensor of bools."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    if isinstance(index, ast.Compare) and not any(
        isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in index.ops
    ):
        return file.flow.is_tensor(index)
    if is_method_call(index):
        return index.func.attr in _MASK_METHODS and file.flow.is_tensor(index)
    bindings = file.tree.bindings(index)
    values = [b.value for b in bindings if b.kind == "assign" and b.value is not None]
    return bool(values) and all(not isinstance(v, ast.Name) and _is_mask(file, v) for v in values)


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

    def find(self, file: File) -> Findings:
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
            if isinstance(node.ctx, ast.Load) and _is_mask(file, node.slice) and file.flow.in_step(node):
                yield self.report(
                    file,
                    node,
                    f"indexing by the mask {file.segment(node.slice)[:40]} gives a shape that depends on values",
                )
