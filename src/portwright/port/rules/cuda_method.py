from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import unwrap
from portwright.port.rule import File, Rule


class CudaMethod(Rule):
    """Takes out .cuda().

    ## Why
    There is no CUDA device on the host of an accelerator.

    ## Example
    ```python
    model = torch.nn.Linear(2, 2)
    model.cuda()
    ```

    ## Instead
    ```python
    model = torch.nn.Linear(2, 2)
    ```

    ## Safety
    Safe: it moves tensors and changes none. All calls that move things are taken out together.
    """

    code = "PW502"
    name = "cuda-method"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = (".cuda(",)
    cure = {
        "csx": "Build the model under `with backend.device:` and let the SDK's loader place the batches.",
        "ipu": "Leave placement to the executor that poptorch.trainingModel returns.",
        "rdu": "Leave placement to samba.session.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("cuda"):
            if (
                not isinstance(call.func, ast.Attribute)
                or len(call.args) > 1
                or file.flow.kind(call.func.value) == "executor"
            ):
                continue
            yield self.report(file, call, ".cuda() needs a CUDA device", unwrap(file, call, call.func.value))


RULE = CudaMethod()
