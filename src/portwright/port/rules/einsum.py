from __future__ import annotations

import ast

from portwright.port.rewrite import const, has_star, text_of, torch_name
from portwright.port.rule import File, Findings, Rule


def matmul_for(file: File, call: ast.Call) -> str | None:
    """The same product as text with matmul; None if the equation is no plain batched product."""
    equation, module = _equation(call.args[0]) if call.args else None, torch_name(file, call)
    is_plain = len(call.args) == 3 and not call.keywords and not has_star(call)
    if not isinstance(equation, str) or module is None or not is_plain:
        return None
    left, _, result = equation.replace(" ", "").partition("->")
    first, _, second = left.partition(",")
    if (
        not (len(first) == len(second) == len(result) >= 2)
        or "." in equation
        or any(len(set(t)) != len(t) for t in (first, second, result))
        or not first[:-2] == second[:-2] == result[:-2]
    ):
        return None
    rows, columns = result[-2], result[-1]
    summed = set(first[-2:]) & set(second[-2:]) - set(result)
    if len(summed) != 1 or rows not in first[-2:] or columns not in second[-2:]:
        return None
    one = text_of(file, call.args[1]) + ("" if first[-2] == rows else ".transpose(-2, -1)")
    other = text_of(file, call.args[2]) + ("" if second[-1] == columns else ".transpose(-2, -1)")
    return f"{module}.matmul({one}, {other})"


def _equation(node: ast.expr) -> object:
    """The literal equation, also of an f-string without placeholders."""
    is_whole = isinstance(node, ast.JoinedStr) and len(node.values) == 1
    return const(node.values[0] if is_whole else node)  # type: ignore[attr-defined]


class Einsum(Rule):
    """Turns einsum of two batched matrices into matmul.

    ## Why
    einsum and einops are not among the operations that PopTorch lists; matmul is.

    ## Example
    ```python
    class Attention(nn.Module):
        def forward(self, q, k):
            return torch.einsum("bhid,bhjd->bhij", q, k)
    ```

    ## Instead
    ```python
    class Attention(nn.Module):
        def forward(self, q, k):
            return torch.matmul(q, k.transpose(-2, -1))
    ```

    ## Safety
    Unsafe, for einsum lets a summed size of 1 on one side stand for any on the other, which matmul refuses. Where both have
    the same size it is how torch computes it as well. Other equations, and einops, are left to you.
    """

    code = "PW311"
    needs = ("no_einsum",)
    safety = "unsafe"
    words = ("einsum", "rearrange", "einops")
    cure = "Write it as matmul with transposes, and rearrange as reshape and permute."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.einsum"):
            if not file.flow.in_step(call):
                continue
            text = matmul_for(file, call)
            yield self.report(
                file,
                call,
                "einsum is not among the target's operations",
                [file.replace(call, text)] if text else [],
            )
        uses = [call for call in file.calls("einops.") if file.flow.in_step(call)]
        if uses:
            first = min(uses, key=lambda c: (c.lineno, c.col_offset))
            yield self.report(
                file, first, f"einops ({len(uses)} in this file) is taken apart when it is traced"
            )
