from __future__ import annotations

from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.host_reads import concerned, is_running_sum, short
from portwright.port.rule import File, Rule


class ItemInStep(Rule):
    """Finds values that a training step or forward() reads with .item().

    ## Why
    Reading a value waits for the device at each step. In a traced step there is no value to read yet, and the
    Cerebras front end and PopTorch refuse it.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    ```

    ## Instead
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
    ```

    ## Safety
    Manual: when the value is read is a choice. Sums of losses are PW202, evaluation is PW203.
    """

    code = "PW201"
    name = "item-in-step"
    targets = ("csx", "ipu", "rdu")
    safety = "manual"
    words = (".item(",)
    cure = {
        "csx": "Return the tensor from the step and read it in a function marked @cstorch.step_closure.",
        "ipu": "Return the tensor from forward, let outputMode decide how often it comes back, and read it after the call.",
        "rdu": "Read it from what samba.session.run returns, after the call, every few steps.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("item"):
            if call.args or not file.flow.in_step(call) or is_running_sum(file, call):
                continue
            where = "forward()" if file.flow.in_forward(call) else "the training step"
            yield self.report(
                file, call, f"a value is read in {where}: {short(file, call)}", targets=concerned(file, call)
            )


RULE = ItemInStep()
