from __future__ import annotations

from portwright.port.legal_form import LegalForm


class TriangularMask(LegalForm):
    """Finds triangles and diagonals cut out inside a step; for csx it puts the legal form in their place.

    ## Why
    A mask made in forward is made again at each step. The Cerebras front end does not lower tril and triu of a bool mask, and
    PopTorch has neither.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.tril(torch.ones(9, 9, dtype=torch.bool, device=x.device))
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.tril(torch.ones(9, 9, dtype=torch.bool, device=x.device))
    ```

    ## Safety
    Safe for csx: a comparison of positions, the same values. For ipu and rdu make the mask once in `__init__`, keep it with
    register_buffer and slice it by fixed numbers.
    """

    code = "PW330"
    name = "triangular-mask"
    words = ("tril", "triu", "diag", "trace", "cross")
    reason = "it is not lowered there, or not of a bool mask"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.tril": "tril",
        "torch.triu": "triu",
        "torch.diag": "diag",
        "torch.diagonal": "diagonal",
        "torch.diag_embed": "diag_embed",
        "torch.trace": "trace",
        "torch.cross": "cross",
        "torch.linalg.cross": "linalg_cross",
    }
    methods = {
        "tril": "tril",
        "triu": "triu",
        "diagonal": "diagonal",
        "diag_embed": "diag_embed",
        "diag": "diag",
        "trace": "trace",
        "cross": "cross",
    }


RULE = TriangularMask()
