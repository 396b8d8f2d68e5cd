from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from portwright.port.rewrite import argument, const, insert_after, torch_name
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_name


def _is_huge(file: File, node: ast.expr) -> bool:
    """Whether a node is minus infinity, or a number below the range of half precision."""
    value = const(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        is_infinity = file.resolve(node.operand) in ("torch.inf", "math.inf", "numpy.inf", "numpy.Inf")
        is_infinity = is_infinity or _is_text_infinity(node.operand, "inf")
    else:
        is_infinity = _is_text_infinity(node, "-inf") or file.resolve(node) == "numpy.NINF"
    return is_infinity or (isinstance(value, (int, float)) and value < -65504)


def _is_text_infinity(node: ast.expr, text: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and is_name(node.func, "float")
        and len(node.args) == 1
        and str(const(node.args[0])).lower() in (text, text + "inity")
    )


def _is_only_mask(file: File, value: ast.expr) -> bool:
    """Whether every large number of the file is this one and masks for softmax: if only one of two masks is rewritten, rows
    that both mask together change."""
    fills = {argument(call, 1, "value"): call for call in file.methods("masked_fill")}
    numbers = [n for n in file.tree.all(ast.UnaryOp, ast.Constant) if _is_large(n, file.tree.parents[n])]
    return all(
        n in fills and const(n) == const(value) and _is_for_softmax(file, fills[n], n) for n in numbers
    )


def _is_large(node: ast.expr, outer: ast.AST) -> bool:
    """Whether a node is a large finite number that can mask scores; positive integers are sizes and seeds."""
    number = const(node)
    if isinstance(outer, ast.UnaryOp) or (isinstance(number, int) and number > 0):
        return False
    return isinstance(number, (int, float)) and 1e8 <= abs(number) < math.inf


def _is_for_softmax(file: File, call: ast.Call, value: ast.expr) -> bool:
    """Whether only softmax reads scores masked by a large finite number; then the dtype's smallest number gives the same weights."""
    number, statement = const(value), file.tree.statement_of(call)
    if not isinstance(number, (int, float)) or not -math.inf < number <= -1e9:
        return False
    if _is_given_to_softmax(file, call):
        return True
    if not (isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1):
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or file.tree.loops_of(statement) or not file.tree.function_of(call):
        return False
    scope, _ = file.tree.scope_of(target).lookup(target.id) or (file.tree.scope, ())
    later = [
        use
        for use in file.tree.reads(target.id, scope)
        if not file.tree.is_within(use, statement)
        and (use.lineno > statement.lineno or file.tree.function_of(use) is not file.tree.function_of(call))
    ]
    return bool(later) and all(_is_given_to_softmax(file, use) for use in later)


def _is_given_to_softmax(file: File, node: ast.expr) -> bool:
    outer = file.tree.parents[node]
    if isinstance(outer, ast.Attribute):
        return outer.attr == "softmax" and isinstance(file.tree.parents[outer], ast.Call)
    return (
        isinstance(outer, ast.Call)
        and outer.args[:1] == [node]
        and file.resolve(outer.func) in ("torch.softmax", "torch.nn.functional.softmax")
    )


def _makes_mask(file: File, node: ast.AST) -> bool:
    """Whether a value becomes an attention mask, by its name, and no code tests for infinity."""
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


def _smallest(file: File, node: ast.expr, dtype: ast.expr | None) -> str | None:
    """The smallest number of a dtype as text, by default of new tensors' dtype."""
    torch = torch_name(file, node)
    if torch is None:
        return None
    text = file.segment(dtype) if dtype is not None else f"{torch}.get_default_dtype()"
    return f"{torch}.finfo({text}).min"


def _made_of(file: File, node: ast.expr) -> ast.Call | None:
    """The call of torch.ones or torch.full that makes a tensor of floats."""
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
            scores = scores.masked_fill(mask == 0, -1e9)
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
    Safe where masked_fill() puts in -1e9 or less, but no infinity, and only softmax sees the result: far below the scores both
    numbers give weights of exactly 0, and a row that is masked everywhere equal weights. So the scores must not have been
    lowered by another mask, which tells in a row that both together mask: unsafe where the file has another such number.
    Unsafe elsewhere: softmax of a row of minus infinities is NaN, and not with a finite number; log_softmax shows the number
    itself; two masks that are added overflow. In half precision, where torch refuses -1e9, the rewritten program runs.
    """

    code = "PW307"
    needs = ("finite_masks",)
    safety = "safe"
    words = ("inf", "torch.log(", "1e9", "1e10", "1e20", "1e30", "1e12", "9e15")
    cure = "Use the smallest finite number of the dtype, torch.finfo(x.dtype).min."

    def find(self, file: File) -> Findings:
        for call in file.methods("masked_fill", "masked_fill_"):
            value = argument(call, 1, "value")
            if value is None or not _is_huge(file, value):
                continue
            receiver, torch = call.func.value, torch_name(file, call)
            edits, is_safe = [], False
            as_float = isinstance(receiver, ast.Call) and file.segment(receiver).endswith(".float()")
            if torch is not None and as_float and _makes_mask(file, call):
                edits = [file.replace(value, f"{torch}.finfo({torch}.float32).min")]
            elif torch is not None and isinstance(receiver, (ast.Name, ast.Attribute)):
                edits = [file.replace(value, f"{torch}.finfo({file.segment(receiver)}.dtype).min")]
                is_safe = call.func.attr == "masked_fill" and _is_for_softmax(file, call, value)
                is_safe = is_safe and _is_only_mask(file, value)
            message = "this mask overflows in half precision"
            yield self.report(file, value, message, edits, safety="safe" if is_safe else "unsafe")
        for node, made in _infinities(file):
            text = _smallest(file, node, argument(made, -1, "dtype"))
            if text is not None and _makes_mask(file, node):
                edits = [file.replace(node, text)]
                if made is not node and file.tree.is_within(made, node):  # log(0) is minus infinity
                    edits = insert_after(file, node, f".clamp(min={text})")
                yield self.report(file, node, "minus infinity in a mask", edits, safety="unsafe")


def _infinities(file: File) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Each minus infinity that makes a mask, or logarithm that gives it, with the call that makes the tensor."""
    for call in file.calls("torch.full"):
        value = argument(call, 1, "fill_value")
        if value is not None and _is_huge(file, value):
            yield value, call
    for call in file.methods("fill_"):
        made = _made_of(file, call.func.value)
        if made is not None and len(call.args) == 1 and _is_huge(file, call.args[0]):
            yield call.args[0], made
    for product in file.tree.all(ast.BinOp):
        if isinstance(product.op, ast.Mult):
            for value, tensor in ((product.left, product.right), (product.right, product.left)):
                made = _made_of(file, tensor) if _is_huge(file, value) else None
                if made is not None and file.resolve(made.func) == "torch.ones":
                    yield value, made
    for call in file.calls("torch.log"):
        made = _made_of(file, call.args[0]) if len(call.args) == 1 and not call.keywords else None
        outer = file.tree.parents.get(call)
        if made is not None and not (isinstance(outer, ast.Attribute) and outer.attr == "clamp"):
            yield call, made
