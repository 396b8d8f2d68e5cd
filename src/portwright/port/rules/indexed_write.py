from __future__ import annotations

from portwright.port.legal_form import LegalForm


class IndexedWrite(LegalForm):
    """Puts legal forms in the place of index_select, index_add, index_fill, index_copy, index_put and take.

    ## Why
    The Cerebras front end lowers gathers and scatters, and refuses the backward pass of an index in a later dimension.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.index_select(1, self.order)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.index_select(x, 1, self.order)
    ```

    ## Safety
    Safe: a gather or scatter of the same elements. The in-place methods are left to you.
    """

    code = "PW334"
    name = "indexed-write"
    words = ("index_select", "index_add", "index_fill", "index_copy", "index_put", "take(", "scatter_reduce")
    reason = "its backward pass is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.index_select": "index_select",
        "torch.index_add": "index_add",
        "torch.index_fill": "index_fill",
        "torch.index_copy": "index_copy",
        "torch.index_put": "index_put",
        "torch.take": "take",
        "torch.scatter_reduce": "scatter_reduce",
    }
    methods = {
        "index_select": "index_select",
        "index_add": "index_add",
        "index_fill": "index_fill",
        "index_copy": "index_copy",
        "index_put": "index_put",
        "scatter_reduce": "scatter_reduce",
        "take": "take",
    }


RULE = IndexedWrite()
