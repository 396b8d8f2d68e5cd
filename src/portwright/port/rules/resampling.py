from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import const, keyword
from portwright.port.rule import File


class Resampling(LegalForm):
    """Puts legal forms in the place of interpolation and upsampling layers.

    ## Why
    The Cerebras front end knows no op for resampling an image.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return F.interpolate(x, scale_factor=2.0)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.interpolate(x, scale_factor=2.0)
    ```

    ## Safety
    Safe: views and slices for the nearest neighbour, products with fixed matrices for the smooth modes. Mode area has no form.
    """

    code = "PW323"
    name = "resampling"
    words = ("interpolate", "psampl", "upsample")
    reason = "resampling is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.Upsample": "Upsample",
        "torch.nn.UpsamplingNearest2d": "UpsamplingNearest2d",
        "torch.nn.UpsamplingBilinear2d": "UpsamplingBilinear2d",
    }
    functions = {
        "torch.nn.functional.interpolate": "interpolate",
        "torch.nn.functional.upsample": "interpolate",
    }

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        mode = keyword(call, "mode") if call is not None else None
        return mode is None or const(mode.value) != "area"


RULE = Resampling()
