from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class MissingOptimizer(Rule):
    """Finds optimizers that the target does not have.

    ## Why
    PopTorch implements five optimizers on the device; Cerebras's SDK all of torch's but L-BFGS and the sparse one.

    ## Example
    ```python
    optimizer = torch.optim.LBFGS(model.parameters())
    ```

    ## Instead
    ```python
    optimizer = torch.optim.AdamW(model.parameters())
    ```

    ## Safety
    Manual, and never equal: it is another method.
    """

    code = "PW406"
    needs = ("known_optimizers",)
    words = ("optim", "LBFGS")
    cure = "Choose one that the target has; another optimizer gives other numbers."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.optim."):
            name = (file.resolve(call.func) or "").removeprefix("torch.optim.")
            if name[:1].isupper() and "." not in name and name != "Optimizer":
                yield self.report(file, call, f"there is no {name} on this target", given=[name])
