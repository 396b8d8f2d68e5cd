from __future__ import annotations

from portwright.port.legal_form import LegalForm


class OneDimensionalConvolution(LegalForm):
    """Puts legal forms in the place of convolutions of one dimension.

    ## Why
    The Cerebras front end traces the forward pass of a 1-D convolution and refuses its backward pass.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(8, 16, 3)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = legal.Conv1d(8, 16, 3)
    ```

    ## Safety
    Safe: the form is a 2-D convolution of height 1 with the same parameters, names and initial values.
    """

    code = "PW320"
    name = "one-dimensional-convolution"
    words = ("onv1d", "conv_transpose1d", "ConvTranspose1d")
    reason = "one-dimensional convolutions have no backward pass there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {"torch.nn.Conv1d": "Conv1d", "torch.nn.ConvTranspose1d": "ConvTranspose1d"}
    functions = {
        "torch.nn.functional.conv1d": "conv1d",
        "torch.conv1d": "conv1d",
        "torch.nn.functional.conv_transpose1d": "conv_transpose1d",
        "torch.conv_transpose1d": "conv_transpose1d",
    }


RULE = OneDimensionalConvolution()
