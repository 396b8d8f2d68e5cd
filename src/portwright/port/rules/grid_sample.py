from __future__ import annotations

from portwright.port.legal_form import LegalForm


class GridSample(LegalForm):
    """Puts legal forms in the place of grid_sample and affine_grid.

    ## Why
    The Cerebras front end knows no op for sampling an image at given points.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return F.grid_sample(x, self.grid, align_corners=False)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.grid_sample(x, self.grid, align_corners=False)
    ```

    ## Safety
    Safe: gathers and products, equal up to rounding.
    """

    code = "PW333"
    name = "grid-sample"
    words = ("grid_sample", "affine_grid")
    reason = "sampling at given points is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.nn.functional.grid_sample": "grid_sample",
        "torch.nn.functional.affine_grid": "affine_grid",
    }


RULE = GridSample()
