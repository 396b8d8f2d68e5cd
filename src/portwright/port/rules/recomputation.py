from __future__ import annotations

from portwright.port.legal_form import LegalForm


class Recomputation(LegalForm):
    """Puts the legal form in the place of torch.utils.checkpoint.checkpoint.

    ## Why
    It looks for a torch module named after the device, which the Cerebras SDK has not; its compiler decides by itself what to keep.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.block, x)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.checkpoint(self.block, x)
    ```

    ## Safety
    Safe: the function is called plainly, so values and gradients are the same and only the memory differs.
    """

    code = "PW335"
    name = "recomputation"
    words = ("checkpoint",)
    reason = "recomputation is decided by the compiler there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {"torch.utils.checkpoint.checkpoint": "checkpoint"}


RULE = Recomputation()
