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
    words = ("norm(", "normalize(", "pairwise_distance", "vector_norm")
    reason = "norms other than the 2-norm are not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.norm": "norm",
        "torch.nn.functional.normalize": "normalize",
        "torch.nn.functional.pairwise_distance": "pairwise_distance",
        "torch.linalg.vector_norm": "vector_norm",
    }
    methods = {"norm": "norm"}

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        if call is None:
            return False
        if name.endswith("vector_norm"):
            power = argument(call, 1, "ord")
        else:
            power = argument(call, 2 if name.endswith("pairwise_distance") else 1 - offset, "p")
        return power is not None and const(power) not in (2, 2.0, "fro", None)


RULE = OtherNorm()
