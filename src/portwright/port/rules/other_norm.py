from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import argument, const
from portwright.port.rule import File


class OtherNorm(LegalForm):
    """Puts legal forms in the place of norms other than the 2-norm.

    ## Why
    The Cerebras front end lowers the 2-norm alone.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.norm(p=1, dim=-1)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.norm(x, p=1, dim=-1)
    ```

    ## Safety
    Safe: the same formula in sums and powers.
    """

    code = "PW336"
    name = "other-norm"
    words = ("norm(", "normalize(")
    reason = "norms other than the 2-norm are not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {"torch.norm": "norm", "torch.nn.functional.normalize": "normalize"}
    methods = {"norm": "norm"}

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        power = argument(call, 1 - offset, "p") if call is not None else None
        return power is not None and const(power) not in (2, 2.0, "fro", None)


RULE = OtherNorm()
