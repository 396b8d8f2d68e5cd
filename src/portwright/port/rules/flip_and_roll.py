from __future__ import annotations

from portwright.port.legal_form import LegalForm


class FlipAndRoll(LegalForm):
    """Puts legal forms in the place of flips, rolls and rotations of a tensor.

    ## Why
    The Cerebras front end traces their forward pass and refuses the backward one.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.flip(x, [1])
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.flip(x, [1])
    ```

    ## Safety
    Safe: slices put together again, the same values in the same places.
    """

    code = "PW325"
    name = "flip-and-roll"
    words = ("flip", "roll", "rot90")
    reason = "it has no backward pass there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.flip": "flip",
        "torch.fliplr": "fliplr",
        "torch.flipud": "flipud",
        "torch.roll": "roll",
        "torch.rot90": "rot90",
    }
    methods = {"flip": "flip", "fliplr": "fliplr", "flipud": "flipud", "roll": "roll", "rot90": "rot90"}


RULE = FlipAndRoll()
