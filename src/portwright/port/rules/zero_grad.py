from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class ZeroGrad(Rule):
    """Finds zero_grad() in loops that are to become PopTorch's.

    ## Why
    PopTorch keeps gradients on the device and clears them itself; a call on the host clears nothing.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Instead
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    ```

    ## Safety
    Manual: in a plain torch loop it is needed, so it goes when the loop does.
    """

    code = "PW402"
    needs = ("poptorch_executor",)
    words = ("zero_grad",)
    cure = "Leave it out once poptorch.trainingModel makes the step: gradients start anew at each step by themselves."

    def find(self, file: File) -> Findings:
        for call in file.methods("zero_grad"):
            if file.flow.in_training_step(call):
                yield self.report(file, call, "gradients are cleared by hand")
