from __future__ import annotations

from portwright.port.legal_form import LegalForm


class UnloweredFunction(LegalForm):
    """Puts legal forms in the place of pointwise functions that the front end does not know.

    ## Why
    The Cerebras front end lowers the common activations and functions, and refuses these, or their backward pass.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.PReLU()
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = legal.PReLU()
    ```

    ## Safety
    Safe: the same formula in functions that are lowered.
    """

    code = "PW331"
    name = "unlowered-function"
    words = (
        "PReLU",
        "prelu",
        "SELU",
        "selu",
        "CELU",
        "celu",
        "ardsigmoid",
        "oftshrink",
        "ardshrink",
        "lerp",
        "nan_to_num",
        "logaddexp",
        "hypot",
        "exp2",
        "asinh",
        "atanh",
        "erfc",
        "trunc",
        "frac",
        "logit",
        "mv",
        "vdot",
        "linspace",
        "fmax",
        "fmin",
        "dist(",
        "fix(",
    )
    reason = "it is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.PReLU": "PReLU",
        "torch.nn.SELU": "SELU",
        "torch.nn.CELU": "CELU",
        "torch.nn.Hardsigmoid": "Hardsigmoid",
        "torch.nn.Softshrink": "Softshrink",
        "torch.nn.Hardshrink": "Hardshrink",
        "torch.nn.ChannelShuffle": "ChannelShuffle",
        "torch.nn.EmbeddingBag": "EmbeddingBag",
    }
    functions = {
        "torch.nn.functional.prelu": "prelu",
        "torch.nn.functional.selu": "selu",
        "torch.nn.functional.celu": "celu",
        "torch.nn.functional.hardsigmoid": "hardsigmoid",
        "torch.nn.functional.softshrink": "softshrink",
        "torch.nn.functional.hardshrink": "hardshrink",
        "torch.nn.functional.channel_shuffle": "channel_shuffle",
        "torch.prelu": "prelu",
        "torch.selu": "selu",
        "torch.celu": "celu",
        "torch.hardshrink": "hardshrink",
        "torch.lerp": "lerp",
        "torch.nan_to_num": "nan_to_num",
        "torch.logaddexp": "logaddexp",
        "torch.hypot": "hypot",
        "torch.exp2": "exp2",
        "torch.asinh": "asinh",
        "torch.atanh": "atanh",
        "torch.erfc": "erfc",
        "torch.trunc": "trunc",
        "torch.frac": "frac",
        "torch.logit": "logit",
        "torch.mv": "mv",
        "torch.vdot": "vdot",
        "torch.linspace": "linspace",
        "torch.fix": "trunc",
        "torch.special.exp2": "exp2",
        "torch.special.erfc": "erfc",
        "torch.special.logit": "logit",
        "torch.fmax": "fmax",
        "torch.fmin": "fmin",
        "torch.dist": "dist",
    }
    methods = {
        "lerp": "lerp",
        "nan_to_num": "nan_to_num",
        "logaddexp": "logaddexp",
        "hypot": "hypot",
        "exp2": "exp2",
        "asinh": "asinh",
        "atanh": "atanh",
        "erfc": "erfc",
        "trunc": "trunc",
        "frac": "frac",
        "logit": "logit",
        "mv": "mv",
        "vdot": "vdot",
        "hardshrink": "hardshrink",
        "fmax": "fmax",
        "fmin": "fmin",
        "dist": "dist",
        "fix": "trunc",
    }


RULE = UnloweredFunction()
