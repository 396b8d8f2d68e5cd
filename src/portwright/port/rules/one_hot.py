from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import argument, const
from portwright.port.rule import File


class OneHot(LegalForm):
    """Puts the legal form in the place of F.one_hot.

    ## Why
    F.one_hot looks at the values to see that they are in range, which reads them back to the host while the step is traced.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return F.one_hot(x, 10)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.one_hot(x, 10)
    ```

    ## Safety
    Safe where the number of classes is given: comparison with an arange. Without it the width would depend on the data, and a
    person has to say it.
    """

    code = "PW322"
    name = "one-hot"
    words = ("one_hot",)
    reason = "it reads values back to the host while the step is traced"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {"torch.nn.functional.one_hot": "one_hot"}

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        given = argument(call, 1, "num_classes") if call is not None else None
        if given is None or const(given) == -1:
            return "Give num_classes: the shape may not depend on the data."
        return True


RULE = OneHot()
