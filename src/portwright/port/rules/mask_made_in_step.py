from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class MaskMadeInStep(Rule):
    """Finds triangular masks that forward() cuts out anew at each step.

    ## Why
    PopTorch knows neither tril nor triu, and a mask that never changes need not be made again at each step.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.triu(self.ones, 1) == 1, -1e4)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self, length):
            super().__init__()
            self.register_buffer("mask", torch.triu(torch.ones(length, length), 1) == 1)

        def forward(self, x):
            return x.masked_fill(self.mask, -1e4)
    ```

    ## Safety
    Manual: the length has to be a setting. For csx PW330 rewrites it.
    """

    code = "PW305"
    needs = ("masks_made_once",)
    words = ("tril", "triu")
    cure = "Make the mask once in __init__, keep it with register_buffer, and slice it by fixed numbers."

    def find(self, file: File) -> Findings:
        for call in file.operations("tril", "triu"):
            if file.flow.in_step(call):
                yield self.report(file, call, "a triangular mask is made at each step")
