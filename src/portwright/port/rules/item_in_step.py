from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_name


class ItemInStep(Rule):
    """Finds values that a training step or forward() reads with .item(), and that forward() makes a number of.

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
    needs = ("no_host_reads", "no_rare_host_reads")
    words = (".item(", "float(", "int(", "bool(")
    cure = "Return the tensor from the step and read it after the call, every few steps."

    def find(self, file: File) -> Findings:
        for call in file.methods("item"):
            if call.args or not file.flow.in_step(call) or file.flow.is_running_sum(call):
                continue
            where = "forward()" if file.flow.in_forward(call) else "the training step"
            message = f"a value is read in {where}: {file.short(call)}"
            yield self.report(file, call, message, needs=file.flow.needs_of_read(call))
        for number in file.tree.all(ast.Call):
            is_number = any(is_name(number.func, kind) for kind in ("float", "int", "bool"))
            is_read = is_number and len(number.args) == 1 and file.flow.is_tensor(number.args[0])
            if is_read and file.flow.in_forward(number):
                yield self.report(file, number, f"a value is read in forward(): {file.short(number)}")
