from __future__ import annotations

from portwright.port.legal_form import LegalForm


class SlidingWindow(LegalForm):
    """Puts legal forms in the place of unfold and fold.

    ## Why
    The Cerebras front end does not lower the op that copies sliding windows.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return F.unfold(x, 3)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.unfold(x, 3)
    ```

    ## Safety
    Safe: windows are cut by slices; fold sums them by a transposed convolution, equal up to rounding.
    """

    code = "PW326"
    name = "sliding-window"
    words = ("nfold", "fold")
    reason = "sliding windows are not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {"torch.nn.Unfold": "Unfold", "torch.nn.Fold": "Fold"}
    functions = {"torch.nn.functional.unfold": "unfold", "torch.nn.functional.fold": "fold"}
    methods = {"unfold": "unfold_dimension"}


RULE = SlidingWindow()
