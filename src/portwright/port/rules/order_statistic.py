from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import argument, keyword
from portwright.port.rule import File


class OrderStatistic(LegalForm):
    """Puts legal forms in the place of medians, k-th values, quantiles, cumulative extremes and searches.

    ## Why
    The Cerebras front end knows no op for them; topk, comparisons and sums it does know.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return torch.median(x, dim=1).values
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.median(x, dim=1).values
    ```

    ## Safety
    Safe: the same values; where several elements are equal, the index that is returned can be another of them, as between any
    two devices.
    """

    code = "PW327"
    name = "order-statistic"
    words = (
        "median",
        "kthvalue",
        "quantile",
        "cummax",
        "cummin",
        "logcumsumexp",
        "searchsorted",
        "bucketize",
        "bincount",
        "count_nonzero",
    )
    reason = "it is not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    functions = {
        "torch.median": "median",
        "torch.kthvalue": "kthvalue",
        "torch.quantile": "quantile",
        "torch.cummax": "cummax",
        "torch.cummin": "cummin",
        "torch.logcumsumexp": "logcumsumexp",
        "torch.searchsorted": "searchsorted",
        "torch.bucketize": "bucketize",
        "torch.bincount": "bincount",
        "torch.count_nonzero": "count_nonzero",
        "torch.nansum": "nansum",
        "torch.nanmean": "nanmean",
        "torch.var_mean": "var_mean",
        "torch.std_mean": "std_mean",
    }
    methods = {
        "median": "median",
        "kthvalue": "kthvalue",
        "quantile": "quantile",
        "cummax": "cummax",
        "cummin": "cummin",
        "logcumsumexp": "logcumsumexp",
        "bincount": "bincount",
        "count_nonzero": "count_nonzero",
        "nansum": "nansum",
        "nanmean": "nanmean",
    }

    def needs(self, file: File, name: str, call: ast.Call | None, offset: int) -> bool | str:
        if call is not None and name.endswith("bincount") and argument(call, 2 - offset, "minlength") is None:
            return "Give minlength, above all values: the shape may not depend on the data."
        return call is None or keyword(call, "sorter") is None


RULE = OrderStatistic()
