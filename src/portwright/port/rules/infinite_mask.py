from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import argument, const
from portwright.port.rule import File, Rule


def _is_huge(file: File, node: ast.expr) -> bool:
    """Minus infinity, or a number below half precision."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = node.operand
        return (
            (file.resolve(operand) in ("torch.inf", "math.inf", "numpy.inf", "numpy.Inf"))
            or _is_text_infinity(operand, "inf")
            or (
                isinstance(const(operand), (int, float)) and const(operand) > 65504  # type: ignore[operator]
            )
        )
    if _is_text_infinity(node, "-inf") or file.resolve(node) == "numpy.NINF":
        return True
    value = const(node)
    return isinstance(value, (int, float)) and value < -65504


def _is_text_infinity(node: ast.expr, text: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "float"
        and len(node.args) == 1
        and str(const(node.args[0])).lower() in (text, text + "inity")
    )


def _name_of_torch(file: File) -> str | None:
    for name, bindings in file.tree.scope.bindings.items():
        if all(b.kind == "import" and b.dotted == "torch" for b in bindings):
            return name
    return None


def _is_for_softmax(file: File, call: ast.Call) -> bool:
    function = file.tree.function_of(call)
    if function is None:
        return False
    names = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name)
    }
    return "softmax" in names and not names & {"isinf", "isfinite", "nan_to_num", "isnan"}


class InfiniteMask(Rule):
    """Replaces minus infinity, and numbers too large for half precision, by the smallest finite number in masks.

    ## Why
    In half precision -1e9 overflows to minus infinity, and rows that are masked everywhere become NaN after softmax.

    ## Example
    ```python
    class Attention(nn.Module):
        def forward(self, scores, mask):
            scores = scores.masked_fill(mask == 0, float("-inf"))
            return F.softmax(scores, dim=-1)
    ```

    ## Instead
    ```python
    class Attention(nn.Module):
        def forward(self, scores, mask):
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
            return F.softmax(scores, dim=-1)
    ```

    ## Safety
    Safe where softmax follows in the same function and nothing there looks for infinities: the masked weights are
    exactly 0 both ways. A row that is masked everywhere gives equal weights instead of NaN. Elsewhere it is unsafe.
    """

    code = "PW307"
    name = "infinite-mask"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("inf", "1e9", "1e10", "1e20", "1e30", "1e12", "9e15")
    cure = "Use the smallest finite number of the dtype, torch.finfo(x.dtype).min."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("masked_fill", "masked_fill_"):
            value = argument(call, 1, "value")
            if value is None or not _is_huge(file, value) or not isinstance(call.func, ast.Attribute):
                continue
            receiver = call.func.value
            torch_name = _name_of_torch(file)
            if torch_name is None or not isinstance(receiver, (ast.Name, ast.Attribute)):
                yield self.report(file, value, "this mask overflows in half precision")
                continue
            edits = [file.replace(value, f"{torch_name}.finfo({file.segment(receiver)}.dtype).min")]
            yield self.report(
                file,
                value,
                "this mask overflows in half precision",
                edits,
                safety="safe" if _is_for_softmax(file, call) else "unsafe",
            )


RULE = InfiniteMask()
