from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import argument, is_constant
from portwright.port.rule import File


class UnloweredPooling(LegalForm):
    """Puts legal forms in the place of adaptive maximum pooling, unpooling, and windows that overhang.

    ## Why
    The Cerebras front end has no backward pass of adaptive maxima and does not lower averages with ceil_mode.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.AdaptiveMaxPool2d(1)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = legal.AdaptiveMaxPool2d(1)
    ```

    ## Safety
    Safe: the same windows by slices. With return_indices there is no form.
    """

    code = "PW332"
    name = "unlowered-pooling"
    words = ("daptiveMaxPool", "adaptive_max_pool", "ceil_mode", "nxUnpool", "axUnpool2d", "max_unpool2d")
    reason = "this pooling is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.AdaptiveMaxPool1d": "AdaptiveMaxPool1d",
        "torch.nn.AdaptiveMaxPool2d": "AdaptiveMaxPool2d",
        "torch.nn.AdaptiveMaxPool3d": "AdaptiveMaxPool3d",
        "torch.nn.MaxUnpool2d": "MaxUnpool2d",
    }
    functions = {
        "torch.nn.functional.adaptive_max_pool1d": "adaptive_max_pool1d",
        "torch.nn.functional.adaptive_max_pool2d": "adaptive_max_pool2d",
        "torch.nn.functional.adaptive_max_pool3d": "adaptive_max_pool3d",
        "torch.nn.functional.avg_pool1d": "avg_pool1d",
        "torch.nn.functional.avg_pool2d": "avg_pool2d",
        "torch.nn.functional.avg_pool3d": "avg_pool3d",
        "torch.nn.functional.max_unpool2d": "max_unpool2d",
    }

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        if call is None:
            return True
        if "avg_pool" in name:
            return is_constant(argument(call, 4, "ceil_mode"), True)
        return not is_constant(argument(call, 1 if "Adaptive" in name else 2, "return_indices"), True)


RULE = UnloweredPooling()
