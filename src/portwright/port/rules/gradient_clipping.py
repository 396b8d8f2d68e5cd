from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class GradientClipping(Rule):
    """Finds gradient clipping in a training step.

    ## Why
    The gradients are on the device inside the compiled step, where torch's function cannot reach them. The Cerebras
    SDK traces it.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
    Manual: the limit moves into the optimizer.
    """

    code = "PW405"
    needs = ("clipping_in_step",)
    words = ("clip_grad",)
    cure = "Clip where the gradients are: ask for the optimizer's own option."

    def find(self, file: File) -> Findings:
        for call in file.calls(
            "torch.nn.utils.clip_grad_norm_",
            "torch.nn.utils.clip_grad_value_",
            "torch.nn.utils.clip_grad_norm",
        ):
            yield self.report(file, call, "gradients are clipped on the host")
