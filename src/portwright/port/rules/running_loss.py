from __future__ import annotations

from portwright.port.rewrite import swap_method
from portwright.port.rule import File, Findings, Rule


class RunningLoss(Rule):
    """Finds running sums such as `total += loss.item()` in a training step.

    ## Why
    The sum reads the device at each step only to be shown at the end of an epoch.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    ```

    ## Instead
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
    ```

    ## Safety
    Unsafe: the sum becomes a tensor, added up in the loss's own precision, so that what is printed can differ in its
    last digits. The training itself is the same.
    """

    code = "PW202"
    needs = ("sums_on_device",)
    safety = "unsafe"
    words = (".item(", ".data")
    cure = "Add up detached tensors and read the sum when it is logged."

    def find(self, file: File) -> Findings:
        for call in file.methods("item"):
            if not call.args and file.flow.in_step(call) and file.flow.is_running_sum(call):
                message = f"a running sum reads the device at each step: {file.short(call)}"
                yield self.report(file, call, message, swap_method(file, call, "detach()"))
