from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.host_reads import concerned, short
from portwright.port.rule import File, Rule


class HostCopyInStep(Rule):
    """Finds tensors that a training step or forward() copies to the host: .cpu(), .numpy(), .tolist().

    ## Why
    A copy to the host waits for the device at each step, and a traced step has nothing to copy yet.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.detach().cpu().numpy())
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
    Manual: the copy has to move behind the step.
    """

    code = "PW204"
    name = "host-copy-in-step"
    targets = ("csx", "ipu", "rdu")
    safety = "manual"
    words = (".cpu(", ".numpy(", ".tolist(")
    cure = {
        "csx": "Return the tensor from the step and read it in a function marked @cstorch.step_closure.",
        "ipu": "Return the tensor from forward, let outputMode decide how often it comes back, and read it after the call.",
        "rdu": "Read it from what samba.session.run returns, after the call, every few steps.",
    }

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.methods("cpu", "numpy", "tolist"):
            if call.args or not file.flow.in_step(call) or not isinstance(call.func, ast.Attribute):
                continue
            parent = file.tree.parents.get(call)
            if isinstance(parent, ast.Attribute) and parent.attr in ("numpy", "tolist"):
                continue  # .cpu().numpy() is one copy
            if file.flow.kind(call.func.value) in ("module", "number", "text"):
                continue
            yield self.report(
                file,
                call,
                f"a tensor is copied to the host in the step: {short(file, call)}",
                targets=concerned(file, call),
            )


RULE = HostCopyInStep()
