from __future__ import annotations

from portwright.port.legal_form import LegalForm


class UnloweredLoss(LegalForm):
    """Puts legal forms in the place of losses that the front end refuses.

    ## Why
    Binary cross-entropy on probabilities is banned in half precision, which the Cerebras backend always turns on; the others
    have no op there, or read a value back.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = nn.BCELoss()
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = legal.BCELoss()
    ```

    ## Safety
    Safe: the same formula, binary cross-entropy in float32.
    """

    code = "PW328"
    name = "unlowered-loss"
    words = (
        "BCELoss",
        "binary_cross_entropy",
        "SmoothL1",
        "smooth_l1",
        "Huber",
        "huber",
        "GaussianNLL",
        "gaussian_nll",
        "MultiMargin",
        "multi_margin",
        "SoftMargin",
        "soft_margin",
    )
    reason = "this loss is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.BCELoss": "BCELoss",
        "torch.nn.SmoothL1Loss": "SmoothL1Loss",
        "torch.nn.HuberLoss": "HuberLoss",
        "torch.nn.GaussianNLLLoss": "GaussianNLLLoss",
        "torch.nn.MultiMarginLoss": "MultiMarginLoss",
        "torch.nn.SoftMarginLoss": "SoftMarginLoss",
    }
    functions = {
        "torch.nn.functional.binary_cross_entropy": "binary_cross_entropy",
        "torch.nn.functional.smooth_l1_loss": "smooth_l1_loss",
        "torch.nn.functional.huber_loss": "huber_loss",
        "torch.nn.functional.gaussian_nll_loss": "gaussian_nll_loss",
        "torch.nn.functional.multi_margin_loss": "multi_margin_loss",
        "torch.nn.functional.soft_margin_loss": "soft_margin_loss",
    }


RULE = UnloweredLoss()
