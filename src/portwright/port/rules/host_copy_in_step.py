from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule


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
    needs = ("no_host_reads", "no_rare_host_reads")
    words = (".cpu(", ".numpy(", ".tolist(")
    cure = "Return the tensor from the step and read it after the call, every few steps."

    def find(self, file: File) -> Findings:
        for call in file.methods("cpu", "numpy", "tolist"):
            outer = file.tree.parents.get(call)
            is_part = isinstance(outer, ast.Attribute) and outer.attr in (
                "numpy",
                "tolist",
            )  # of .cpu().numpy()
            if call.args or is_part or not file.flow.in_step(call):
                continue
            if file.flow.kind(call.func.value) not in ("module", "number", "text"):
                message = f"a tensor is copied to the host in the step: {file.short(call)}"
                yield self.report(file, call, message, needs=file.flow.needs_of_read(call))
