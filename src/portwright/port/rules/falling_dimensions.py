from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import argument, const
from portwright.port.rule import File, Rule


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
    Safe: the order of the dimensions does not change a reduction. Lists that mix signs are left alone.
    """

    code = "PW337"
    name = "falling-dimensions"
    targets = ("csx",)
    safety = "safe"
    words = ("sum(", "mean(", "amax(", "amin(", "var(", "std(", "logsumexp(")
    cure = "List the dimensions in rising order."

    def find(self, file: File) -> Iterator[Finding]:
        names = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")
        calls = [(call, 1) for name in names for call in file.calls(f"torch.{name}")] + [
            (call, 0) for call in file.methods(*names)
        ]
        for call, position in calls:
            dims = argument(call, position, "dim")
            if not isinstance(dims, (ast.Tuple, ast.List)) or not file.flow.in_step(call):
                continue
            values = [v for v in (const(element) for element in dims.elts) if isinstance(v, int)]
            if len(values) != len(dims.elts) or values == sorted(values) or len({v < 0 for v in values}) != 1:
                continue
            opening, closing = ("(", ")") if isinstance(dims, ast.Tuple) else ("[", "]")
            text = f"{opening}{', '.join(map(str, sorted(values)))}{closing}"
            yield self.report(
                file,
                dims,
                f"dimensions {file.segment(dims)} are listed in falling order",
                [file.replace(dims, text)],
            )


RULE = FallingDimensions()
