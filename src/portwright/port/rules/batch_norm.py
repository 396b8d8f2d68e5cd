from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class BatchNorm(Rule):
    """Finds batch norms, once in a file.

    ## Why
    Replicas, gradient accumulation and pipelining split a batch, and each part then has statistics of its own.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(16)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(4, 16)
    ```

    ## Safety
    Manual: another norm is another model; a smaller change is to keep the batch whole.
    """

    code = "PW309"
    needs = ("whole_batch_statistics",)
    words = ("BatchNorm",)
    cure = "Keep the whole batch on each replica, or synchronise the statistics, and compare the running averages' momentum with the target's."

    def find(self, file: File) -> Findings:
        calls = file.calls(*(f"torch.nn.BatchNorm{d}d" for d in (1, 2, 3)))
        if calls:
            first = min(calls, key=lambda c: (c.lineno, c.col_offset))
            yield self.report(
                file, first, f"batch norm ({len(calls)} in this file) depends on how the batch is split"
            )
