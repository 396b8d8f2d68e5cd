from __future__ import annotations

from portwright.port.finding import Safety
from portwright.port.legal_form import LegalForm
from portwright.port.rule import File


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
    Safe: the function is called plainly, so values and gradients are the same and only the memory differs. Unsafe in
    a file with batch norms: torch's recomputation moves their running statistics twice a step, and a plain call once.
    """

    code = "PW335"
    name = "recomputation"
    words = ("checkpoint",)
    reason = "recomputation is decided by the compiler there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {"torch.utils.checkpoint.checkpoint": "checkpoint"}

    def safety_of(self, file: File, name: str) -> Safety:
        return "unsafe" if b"BatchNorm" in file.source.data else "safe"


RULE = Recomputation()
