from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from portwright.port.finding import Edit, Finding
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


def _clamp(end: int, smallest: str) -> Edit:
    """The logarithm of 0 is minus infinity too."""
    return Edit(end, end, f".clamp(min={smallest})")


def _makes_mask(file: File, node: ast.AST) -> bool:
    """Whether a value becomes an attention mask, by the names that people give those, and nobody looks for infinities."""
    function = file.tree.function_of(node)
    statement = file.tree.statement_of(node)
    named = "mask" in getattr(function, "name", "").lower()
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        named = named or any("mask" in file.segment(t).lower() for t in targets)
    return named and not _looks_for_infinity(file)


def _looks_for_infinity(file: File) -> bool:
    if any(file.attributes("isinf", "isfinite", "isneginf", "nan_to_num", "isnan")):
        return True
    compared = [part for node in file.tree.all(ast.Compare) for part in (node.left, *node.comparators)]
    return any(_is_huge(file, part) for part in compared)


def _smallest(file: File, dtype: ast.expr | None) -> str | None:
    """The smallest number of a type, by default of the precision that new tensors have."""
    torch_name = _name_of_torch(file)
    if torch_name is None:
        return None
    text = file.segment(dtype) if dtype is not None else f"{torch_name}.get_default_dtype()"
    return f"{torch_name}.finfo({text}).min"


def _made_of(file: File, node: ast.expr) -> ast.Call | None:
    """The call of torch.ones or torch.full that a tensor of floats is made of."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if file.resolve(node.func) in ("torch.ones", "torch.full", "torch.zeros", "torch.empty"):
            return node
        if node.func.attr not in ("triu", "tril", "unsqueeze", "expand", "fill_"):
            return None
        node = node.args[0] if file.resolve(node.func) is not None and node.args else node.func.value
    return None


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
    Safe where softmax follows in the same function, or where a mask is made (its function or name says so), and nothing
    looks for infinities: the masked weights are exactly 0 both ways. A row that is masked everywhere gives equal
    weights, in the layers API zeros, instead of NaN. Elsewhere it is unsafe.
    """

    code = "PW307"
    name = "infinite-mask"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("inf", "torch.log(", "1e9", "1e10", "1e20", "1e30", "1e12", "9e15")
    cure = "Use the smallest finite number of the dtype, torch.finfo(x.dtype).min."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("masked_fill", "masked_fill_"):
            value = argument(call, 1, "value")
            if value is None or not _is_huge(file, value) or not isinstance(call.func, ast.Attribute):
                continue
            receiver = call.func.value
            torch_name = _name_of_torch(file)
            as_float = isinstance(receiver, ast.Call) and file.segment(receiver).endswith(".float()")
            if torch_name is not None and as_float and _makes_mask(file, call):
                edits = [file.replace(value, f"{torch_name}.finfo({torch_name}.float32).min")]
                yield self.report(file, value, "this mask overflows in half precision", edits)
                continue
            if torch_name is None or not isinstance(receiver, (ast.Name, ast.Attribute)):
                yield self.report(file, value, "this mask overflows in half precision")
                continue
            edits = [file.replace(value, f"{torch_name}.finfo({file.segment(receiver)}.dtype).min")]
            yield self.report(
                file,
                value,
                "this mask overflows in half precision",
                edits,
                safety="safe" if _is_for_softmax(file, call) or _makes_mask(file, call) else "unsafe",
            )
        for node, dtype, edit in self._infinities(file):
            text = _smallest(file, dtype)
            if text is not None and _makes_mask(file, node):
                edits = [edit(text)]
                yield self.report(file, node, "minus infinity in a mask", edits)

    def _infinities(self, file: File) -> Iterator[tuple[ast.expr, ast.expr | None, Callable[[str], Edit]]]:
        """Minus infinities that masks are made of, with the type that is given and the edit that is needed."""
        for call in file.calls("torch.full"):
            value = argument(call, 1, "fill_value")
            if value is not None and _is_huge(file, value):
                yield value, argument(call, -1, "dtype"), partial(file.replace, value)
        for call in file.methods("fill_"):
            made = _made_of(file, call.func.value) if isinstance(call.func, ast.Attribute) else None
            if made is not None and len(call.args) == 1 and _is_huge(file, call.args[0]):
                yield call.args[0], argument(made, -1, "dtype"), partial(file.replace, call.args[0])
        for product in file.tree.all(ast.BinOp):
            if isinstance(product.op, ast.Mult):
                for value, tensor in ((product.left, product.right), (product.right, product.left)):
                    made = _made_of(file, tensor) if _is_huge(file, value) else None
                    if made is not None and file.resolve(made.func) == "torch.ones":
                        yield value, argument(made, -1, "dtype"), partial(file.replace, value)
        for call in file.calls("torch.log"):
            made = _made_of(file, call.args[0]) if len(call.args) == 1 and not call.keywords else None
            outer = file.tree.parents.get(call)
            if made is not None and not (isinstance(outer, ast.Attribute) and outer.attr == "clamp"):
                _, end = file.source.span(call)
                yield call, argument(made, -1, "dtype"), partial(_clamp, end)


RULE = InfiniteMask()
