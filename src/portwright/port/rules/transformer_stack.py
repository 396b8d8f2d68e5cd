from __future__ import annotations

from portwright.port.legal_form import LegalForm


class TransformerStack(LegalForm):
    """Puts legal forms in the place of nn.TransformerEncoder and nn.TransformerDecoder.

    ## Why
    Torch's stacks look at the values of a mask to see whether it is causal, which reads them back to the host while the step
    is traced.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.encoder = nn.TransformerEncoder(layer, 2)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.encoder = legal.TransformerEncoder(layer, 2)
    ```

    ## Safety
    Safe: the same layers and parameters; the mask is taken as it is.
    """

    code = "PW340"
    name = "transformer-stack"
    words = ("Transformer",)
    reason = "it reads back whether its mask is causal"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.TransformerEncoder": "TransformerEncoder",
        "torch.nn.TransformerDecoder": "TransformerDecoder",
    }


RULE = TransformerStack()
