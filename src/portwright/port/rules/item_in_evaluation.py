from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class ItemInEvaluation(Rule):
    """Finds .item() in a loop that evaluates a model.

    ## Why
    Each read waits for the device, so that the next batch starts only when this one is done.

    ## Example
    ```python
    def evaluate(model, loader):
        correct = 0
        with torch.no_grad():
            for x, y in loader:
                correct += (model(x).argmax(1) == y).sum().item()
        return correct
    ```

    ## Instead
    ```python
    def evaluate(model, loader):
        with torch.no_grad():
            correct = sum((model(x).argmax(1) == y).sum() for x, y in loader)
        return correct.item()
    ```

    ## Safety
    Manual. Reads outside of loops are not reported.
    """

    code = "PW203"
    needs = ("no_host_reads_in_evaluation",)
    words = (".item(",)
    cure = "Collect the tensors and read them after the loop."

    def find(self, file: File) -> Findings:
        for call in file.methods("item"):
            is_read = not call.args and not file.flow.in_step(call)
            if is_read and file.tree.loops_of(call) and file.flow.is_without_gradients(call):
                yield self.report(file, call, f"a value is read for each batch: {file.short(call)}")
