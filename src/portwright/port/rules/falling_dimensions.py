from __future__ import annotations

import ast

from portwright.port.rewrite import argument, const
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call

_REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")


class FallingDimensions(Rule):
    """Puts the dimensions of a reduction in rising order.

    ## Why
    The Cerebras front end lowers reductions over several dimensions only where they are listed in rising order.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.sum((-1, -2))
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.sum((-2, -1))
    ```

    ## Safety
    Safe for a tensor: a reduction adds up the same elements in whatever order its dimensions are listed; the order of its sums, and
    with it the last digits, may differ. A list with a name is safe where only reductions of its own function use it: at the
    top of a file other files can see it, and that is unsafe, as is a receiver that may be something else than a tensor.
    Lists that mix signs are left alone.
    """

    code = "PW337"
    needs = ("known_operations",)
    safety = "safe"
    words = ("sum(", "mean(", "amax(", "amin(", "var(", "std(", "logsumexp(")
    cure = "List the dimensions in rising order."

    def find(self, file: File) -> Findings:
        calls = [(call, 1) for name in _REDUCTIONS for call in file.calls(f"torch.{name}")] + [
            (call, 0) for call in file.methods(*_REDUCTIONS)
        ]
        seen: set[ast.AST] = set()
        for call, position in calls:
            dims = argument(call, position, "dim")
            if dims is None or not file.flow.in_step(call):
                continue
            is_tensor = position == 1 or file.flow.is_tensor(call.func.value)  # type: ignore[attr-defined]
            for listed in _listed(file, dims):
                text = _rising(listed)
                if text is None or listed in seen:
                    continue
                seen.add(listed)
                message = f"dimensions {file.segment(listed)} are listed in falling order"
                is_own = file.tree.function_of(listed) is not None
                yield self.report(
                    file, listed, message, [file.replace(listed, text)],
                    safety="safe" if is_tensor and is_own else "unsafe",
                )  # fmt: skip


def _listed(file: File, dims: ast.expr) -> list[ast.expr]:
    """The literal lists that dimensions come from: in the call, in a conditional expression, or through a name."""
    if isinstance(dims, ast.IfExp):
        return [*_listed(file, dims.body), *_listed(file, dims.orelse)]
    if isinstance(dims, ast.Name):
        found = file.tree.scope_of(dims).lookup(dims.id)
        if not found or not all(_names_dimensions(file, use) for use in file.tree.reads(dims.id, found[0])):
            return []
        values = [b.value for b in found[1] if b.value is not None and not isinstance(b.value, ast.Name)]
        return [each for value in values for each in _listed(file, value)]
    return [dims] if isinstance(dims, (ast.Tuple, ast.List)) else []


def _names_dimensions(file: File, use: ast.Name) -> bool:
    """Whether a name is used for the dimensions of a reduction, where their order does not matter."""
    outer = file.tree.parents.get(use)
    if isinstance(outer, ast.keyword):
        outer = file.tree.parents[outer] if outer.arg in ("dim", "axis") else None
    return is_method_call(outer, *_REDUCTIONS)


def _rising(dims: ast.expr) -> str | None:
    """The dimensions in rising order as text; None if they are in that order, unknown, or of mixed signs."""
    assert isinstance(dims, (ast.Tuple, ast.List))
    values = [v for v in (const(element) for element in dims.elts) if isinstance(v, int)]
    if len(values) != len(dims.elts) or values == sorted(values) or len({v < 0 for v in values}) != 1:
        return None
    opening, closing = ("(", ")") if isinstance(dims, ast.Tuple) else ("[", "]")
    return f"{opening}{', '.join(map(str, sorted(values)))}{closing}"
