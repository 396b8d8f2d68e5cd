from __future__ import annotations

from portwright.port.rewrite import has_star, is_constant, keyword, set_keyword
from portwright.port.rule import File, Findings, Rule


class AutomaticMixedPrecision(Rule):
    """Turns off torch's automatic mixed precision.

    ## Why
    autocast and GradScaler speak to CUDA. These targets have a precision option and a loss scaling of their own.

    ## Example
    ```python
    scaler = torch.cuda.amp.GradScaler()
    ```

    ## Instead
    ```python
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    ```

    ## Safety
    Unsafe: with autocast on, the numbers were rounded to half precision, and now are not.
    """

    code = "PW409"
    needs = ("own_precision",)
    safety = "unsafe"
    words = ("autocast", "GradScaler")
    cure = "Turn it off and use the target's own precision option."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.autocast", "torch.amp.GradScaler"):
            given = keyword(call, "enabled")
            if has_star(call) or (given is not None and is_constant(given.value, False)):
                continue
            name = (file.resolve(call.func) or "").rpartition(".")[2]
            yield self.report(file, call, f"{name} is for CUDA", set_keyword(file, call, "enabled", "False"))
